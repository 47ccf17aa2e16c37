"""The cache of compiled kernels never serves code of other sources or flags."""

import os
import subprocess
import sys
import textwrap
import time

import pytest

from palestra.kernels import cache_folder, kernel


def _run(folder, **environment):
    script = "import sys; sys.path.insert(0, '.'); import caller; print(caller.total(2.0))"
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "NUMBA_CACHE_DIR": str(folder / "cache"), **environment},
    )
    return float(done.stdout)


def test_a_changed_callee_in_the_same_folder_is_compiled_anew(tmp_path):
    callee = "from palestra.kernels import kernel\n@kernel\ndef part(x):\n    return {} * x\n"
    caller = """
        from palestra.kernels import kernel
        from callee import part

        @kernel
        def total(x):
            return part(x)
        """
    (tmp_path / "caller.py").write_text(textwrap.dedent(caller))
    (tmp_path / "callee.py").write_text(callee.format(3.0))
    assert _run(tmp_path) == 6.0
    time.sleep(0.02)  # another modification time
    (tmp_path / "callee.py").write_text(callee.format(5.0))
    assert _run(tmp_path) == 10.0


def test_other_compiler_flags_use_another_folder(monkeypatch):
    """core dossier, issue 43: NUMBA_OPT is not part of numba's own cache key."""
    monkeypatch.setenv("NUMBA_OPT", "3")
    three = cache_folder("m")
    monkeypatch.setenv("NUMBA_OPT", "0")
    assert cache_folder("m") != three


def test_the_name_of_the_module_is_part_of_the_folder():
    assert cache_folder("a") != cache_folder("b")


def test_one_function_is_not_compiled_twice_with_other_flags():
    """numba#6845: the cache ignores fastmath, so the first variant would serve both."""

    def added(x):
        return x + 1.0

    kernel(added)
    with pytest.raises(ValueError, match="different flags"):
        kernel(reassociate_sums=True)(added)


def test_an_unwritable_cache_falls_back_to_a_private_one_and_says_so(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "file"))
    with pytest.warns(RuntimeWarning, match="cannot be written"):
        folder = cache_folder("m")
    assert folder.is_dir()
    assert tmp_path not in folder.parents
