"""``python -m openmps``: the `openmps` command. A program that ends in .py is run by this Python."""

from __future__ import annotations

import os
import sys

from ._installation import executable

# The options of `openmps run` and `openmps trace` that take no word after them.
FLAGS = {"--softcuda", "--isolate", "--latency", "--native", "--guard", "--help", "-h"}


def with_python(arguments: list[str]) -> list[str]:
    """The arguments, with this Python before a program that is a script.

    >>> with_python(["run", "--memory", "4G", "job.py", "-n", "2"])[3:] == [sys.executable, "job.py", "-n", "2"]
    True
    >>> with_python(["run", "--softcuda", "python3", "job.py"])
    ['run', '--softcuda', 'python3', 'job.py']
    """
    if arguments[:1] not in (["run"], ["trace"]):
        return arguments
    place = 1
    while place < len(arguments) and arguments[place].startswith("-"):
        word = arguments[place]
        place += 1
        if word == "--":
            break
        if word not in FLAGS and "=" not in word:
            place += 1
    if place < len(arguments) and arguments[place].endswith(".py"):
        return [*arguments[:place], sys.executable, *arguments[place:]]
    return arguments


def main() -> None:
    command = executable()
    os.execv(command, [str(command), *with_python(sys.argv[1:])])


if __name__ == "__main__":
    main()
