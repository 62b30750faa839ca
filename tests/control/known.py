"""Differences between NVIDIA's control shell and ours that are meant; docs/control.md has them for users. The first that fits is counted.

Each says which lines it is about, and what ours may answer: a difference in any other way is not known.
"""

import re

import grammar

NO_SERVER = rb"(Server 0 not found\n|Server 0 not found!\n|1\n|\n)*"
REFUSED_VALUE = rb"Invalid priority value - must be 0 or 1!\n|\d+\.\d\n|"
NO_UID = rb"A user id \(UID\) is required to start a new server\n"


class Known:
    """A difference that is meant."""

    def __init__(self, why, lines, ours=rb".*"):
        self.why, self.lines, self.ours = why, lines, ours

    def fits(self, case):
        if not self.lines(case):
            return False
        if case.what != "answer":
            return True
        return isinstance(case.ours, bytes) and re.fullmatch(self.ours, case.ours, re.S) is not None


def has_name(*names):
    return lambda case: grammar.parts(case.line)[0] in names


def is_long(case):
    return len(case.line) > 4000


def echoes(case):
    name = grammar.parts(case.line)[0]
    return name not in grammar.COMMANDS and (len(name) > 64 or re.search(rb"[^\x21-\x7e]", name))


def names_starting_server(case):
    limits = rb"[gs]et_(active_thread_percentage|device_pinned_mem_limit)"
    name, arguments = grammar.parts(case.line)
    return case.world == "starting" and re.fullmatch(limits, name) and arguments[0][1] == grammar.SERVER


def shows_whole_gigabytes(case):
    """Whether NVIDIA's shows as much as ours, rounded down."""
    if not has_name(b"get_default_device_pinned_mem_limit")(case):
        return False
    theirs, ours = (said[0] if isinstance(said, list) and said else said for said in (case.theirs, case.ours))
    both = [re.fullmatch(rb"(\d+)([GM])\n?", said) if isinstance(said, bytes) else None for said in (theirs, ours)]
    return all(both) and both[0][2] == b"G" and both[1][2] == b"M" and int(both[0][1]) == int(both[1][1]) // 1024


def has_no_device(case):
    return grammar.is_missing(case.line, grammar.DEVICE)


def starts_server_of_another(case):
    return case.world == "starting" and case.what == "log" and grammar.starts_server(case.line)


def puts_flag_first(case):
    name, arguments = grammar.parts(case.line)
    return name == b"shutdown_server" and arguments[0][1] == b"-f" and arguments[1][1] is not None


def quits_after_failures(case):
    """Both daemons exit with 1; so does our front end, as NVIDIA's manual has it, and NVIDIA's with 0."""
    return case.what == "quit" and case.theirs[0] == (b"", 0) and case.ours[0] == (b"", 1) and case.theirs[1] == case.ours[1] == 1


def loses_its_daemon(case):
    if case.what == "end of a script":
        return case.world == "failing" and case.theirs[0] == 1
    return case.world == "failing" and case.what == "answer" and case.theirs.startswith(b"(the script ended here)")


KNOWN = [
    Known("where servers had failed the daemon exits with 1, and ours after `quit` too; NVIDIA's front end mostly with 0", quits_after_failures),
    Known("NVIDIA's front end loses its connection, now and then, while the daemon sees a server end", loses_its_daemon),
    Known("NVIDIA's reads the number that a wrong one begins with, or takes it for 0; ours refuses it", lambda case: grammar.malformed(case.line),
          b"|".join([NO_SERVER, REFUSED_VALUE, NO_UID, rb"A server PID is required\n"])),
    Known("ours takes `shutdown_server -f PID` too", puts_flag_first, rb"Server .* not found\n"),
    Known("a missing device is none for ours, and the first one for NVIDIA's", has_no_device, NO_SERVER),
    Known("ours logs at once that a server leaves for another user's; NVIDIA's logs it when that has gone", starts_server_of_another),
    Known("a line of more than 4 KiB is two lines for NVIDIA's; for ours it is one", is_long),
    Known("device_query is of 580", lambda case: case.release < 580 and has_name(b"device_query")(case)),
    Known("get_server_status is of 550", lambda case: case.release < 550 and has_name(b"get_server_status")(case)),
    Known("ours repeats 64 characters of a word that is no command, and none that a terminal would act on", echoes, rb'Unknown command "[^\0-\x1f]*"\n'),
    Known("NVIDIA's has no limits of a server that is starting; ours keeps them for its first client", names_starting_server, rb"\d+\.\d\n|\d+[GM]\n|"),
    Known("NVIDIA's shows whole gigabytes of a limit above 1 GiB, ours all of it", shows_whole_gigabytes),
    Known("NVIDIA's knows a device's UUID from its first server on; ours keeps a limit for any", lambda case: grammar.names_uuid(case.line), rb"\d+[GM]\n|" + NO_SERVER),
]
