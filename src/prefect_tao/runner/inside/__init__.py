"""The program that runs inside the container, around the user's command.

It fetches inputs, writes the spec, runs the command as its own process group, carries outputs away while the command
runs and after it ended however it ended, and writes the exit marker last. Standard library only, Python 3.8 and newer:
it must start in any image that has a python3, so modules that only some jobs need are imported late, and `typing` not
at all, because every start would pay for it.

The folder travels as it is. Its modules know each other by relative imports alone, because in a job there is no
package around it. Any job may load what lies right here; what only jobs with storage need is in `stores`,
with one module for each scheme, and in `transfers`.
"""
