"""What `palestra check` looks at, one idea a file; `palestra.check` is the way in.

`subject` finds out what a target is, `play` plays it call by call. `repeat`, `arrays`, `fuzz`,
`actions`, `copies` and `rows` hold the checks; `fresh` those that want a process of their own.
`program` runs them in order, `worker` does so in another process, `supervise` watches it.
"""
