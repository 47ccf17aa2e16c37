"""EnvPool's CartPole in an interpreter of its own: reads step counts, answers CPU-seconds.

Synchronous, one thread: in this set-up more threads gave fewer steps per CPU-second.
"""

import sys
import time

import envpool
import numpy as np

PLANNED = 32


def main() -> None:
    rows = int(sys.argv[1])
    pool = envpool.make_gymnasium("CartPole-v1", num_envs=rows, num_threads=1, seed=0)
    pool.reset()
    draws = np.random.default_rng(0)
    plan = [draws.integers(0, 2, rows) for _ in range(PLANNED)]
    for line in sys.stdin:
        started = time.process_time()
        for index in range(int(line)):
            pool.step(plan[index % PLANNED])
        print(time.process_time() - started, flush=True)


if __name__ == "__main__":
    main()
