"""Lines of the control shell, good and bad, at random."""

import collections
import re

Case = collections.namedtuple("Case", "world release what line theirs ours")

# Stands for the process id of the daemon's own server.
SERVER = b"{SERVER}"

# What an argument is chosen from, and what matches the words of it that are well formed, as a whole.
Kind = collections.namedtuple("Kind", "words plain", defaults=[rb".*"])

PID = Kind([*[SERVER] * 4, b"0", b"1", b"975", b"99999999", b"-1", b"+7", b"007", b"2147483648", b"4294967297", b"x", b"12x", b"0x10", b"1.5"],
           rb"\{SERVER\}|\+?\d{1,9}")
PERCENTAGE = Kind([b"1", b"25", b"33.3", b"33.35", b"50", b"100", b"100.0", b"0", b"-5", b"100.5", b"1e1", b"abc", b"50%", b"nan", b"inf", b"7x", b"0x10",
                   b".5", b"5.", b"1e-3", b"0.04", b"+9"],
                  rb"\+?\d+(\.\d+)?(e-?\d)?|-\d|nan|abc|\.5|5\.|50%")
DEVICE = Kind([b"0", b"0", b"0", b"1", b"7", b"31", b"32", b"-1", b"01", b"x", b"1x", b"GPU-1234", b"GPU-d123c540-3d02-b0d8-c638-e90011910307"],
              rb"-?\d{1,3}|GPU-.*")
LIMIT = Kind([b"0", b"1G", b"512M", b"3MB", b"10", b"1024M", b"1025M", b"3g", b"3m", b"1.5G", b"3X", b"-1", b"G", b"2048K", b"1T", b"99999999999G", b"abc",
              b"0G", b"3 G"],
             rb"\d{1,4}([GMgm]|MB)?")
PRIORITY = Kind([b"0", b"1", b"2", b"-1", b"x", b"1x", b"01", b"+1", b"1.5", b"4294967297"], rb"[+-]?\d{1,9}")
UID = Kind([b"0", b"12345", b"x", b"12x", b"-1", b"4294967296"], rb"\d{1,9}")
PS_OPTION = Kind([b"-p", b"-p", b"-x", b"x", b"-p1", b"-p-1", b"-p" + SERVER, b"--p"], rb"-p(\d|\{SERVER\})?|-x|x|--p")
TO_SHUT_DOWN = Kind([b"1", b"975", b"x", b"-1", b"-f", b"0"], rb"\d+|-f")
COMMANDS = {
    b"get_server_list": [],
    b"get_server_status": [PID],
    b"get_client_list": [PID],
    b"get_device_client_list": [PID],
    b"ps": [PS_OPTION, PID],
    b"set_default_active_thread_percentage": [PERCENTAGE],
    b"get_default_active_thread_percentage": [],
    b"set_active_thread_percentage": [PID, PERCENTAGE],
    b"get_active_thread_percentage": [PID],
    b"set_default_device_pinned_mem_limit": [DEVICE, LIMIT],
    b"get_default_device_pinned_mem_limit": [DEVICE],
    b"set_device_pinned_mem_limit": [PID, DEVICE, LIMIT],
    b"get_device_pinned_mem_limit": [PID, DEVICE],
    b"set_default_client_priority": [PRIORITY],
    b"get_default_client_priority": [],
    b"shutdown_server": [TO_SHUT_DOWN, Kind([b"-f", b"-x", b"f"])],
    b"terminate_client": [PID, PID],
    b"start_server": [Kind([b"-uid", b"-uid", b"-uid", b"uid", b"-u", b"0"]), UID],
    b"device_query": [Kind([b"1", b"--csv"])],
}
QUITS = [b"quit", b"quit -t 3", b"quit -t", b"quit x", b"quit -t x", b"  quit\t", b"quit -t 0", b"quit -t 3 x"]
# Ours says at the end of what it logs of a command why it complains.
COMPLAINT_WORDS = rb".*: .*|there is no server .*|`.*` is no command.*|server .* is still starting.*|-mlopart .*"


def are_complaints(lines):
    return all(not line or re.fullmatch(COMPLAINT_WORDS, line, re.S) for line in lines)


def parts(line):
    """The name of a command, and `(kind, word)` of its arguments; the word is None where there is none."""
    name, *words = line.split(b"\0")[0].split() or [b""]
    kinds = COMMANDS.get(name, [])
    return name, [(kind, words[at] if at < len(words) else None) for at, kind in enumerate(kinds)]


def malformed(line):
    """Whether a value of a known command is not a plain number, size or word."""
    return any(word is not None and not re.fullmatch(kind.plain, word) for kind, word in parts(line)[1])


def is_missing(line, wanted):
    return any(kind is wanted and word is None for kind, word in parts(line)[1])


def names_uuid(line):
    return any(kind is DEVICE and word and word.startswith(b"GPU-") for kind, word in parts(line)[1])


def line(choose, world):
    name = choose.choice(list(COMMANDS))
    words = [name] + [choose.choice(kind.words) for kind in COMMANDS[name]]
    while len(words) > 1 and choose.random() < 0.15:
        words.pop()
    if choose.random() < 0.1:
        words.append(choose.choice([b"surplus", b"1", b"-f", b"--", b"\xff"]))
    text = b" ".join(words)
    kind = choose.random()
    if kind < 0.02:
        text = name[: choose.randrange(1, len(name))]
    elif kind < 0.04:
        text = choose.choice([name.upper(), name + b"x", b"x" + name, b"", b" ", b"help", b"lspart", b"?", b"#" + text, b'"' + text + b'"'])
    elif kind < 0.1:
        text = choose.choice([b" ", b"\t", b"", b"  ", b"\t \t"]) + choose.choice([b"  ", b"\t", b" \t "]).join(words) + choose.choice([b"", b" ", b"\t"])
    elif kind < 0.12:
        text += b"\r"
    elif kind < 0.13:
        at = choose.randrange(len(text) + 1)
        text = text[:at] + b"\0" + text[at:]
    elif kind < 0.14:
        at = choose.randrange(len(text) + 1)
        text = text[:at] + bytes(choose.choices([b for b in range(1, 256) if b not in b"\n@"], k=choose.randrange(1, 4))) + text[at:]
    elif kind < 0.15:
        text = choose.choice([b"x", b"get_", b"\xe2\x82\xac"]) * choose.choice([30, 100, 500])
    elif kind < 0.155:
        text += b" " * 5000
    elif kind < 0.16:
        text += b" " + b"y" * choose.choice([100, 1000, 3000])
    if world != "starting":
        text = text.replace(SERVER, b"975")
    return text


def starts_server(text):
    name, arguments = parts(text)
    return name == b"start_server" and arguments[0][1] == b"-uid" and arguments[1][1] is not None


def resets(text):
    """Lines that put back what one shell may have set and the other refused."""
    name, arguments = parts(text)
    if name == b"set_default_active_thread_percentage":
        return [name + b" 100"]
    if name == b"set_default_client_priority":
        return [name + b" 0"]
    if name == b"set_default_device_pinned_mem_limit":
        return [name + b" %s 0" % device for device in (b"0", b"1", b"7", b"31", *DEVICE.words[-2:])]
    return []


def shown(text):
    """The line that shows what this one has set."""
    name, arguments = parts(text)
    getter = name.replace(b"set_", b"get_", 1)
    words = [word for _, word in arguments[: len(COMMANDS.get(getter, []))]]
    return [b" ".join([getter, *words])] if getter in COMMANDS and None not in words else []


def script(choose, world):
    """Up to 20 lines; behind one that sets something, often one that shows it."""
    lines = []
    for _ in range(choose.randrange(1, 20)):
        text = line(choose, world)
        # What NVIDIA's takes for a user id, and ours does not, would start a server for one of them.
        if starts_server(text) and (world == "none" or world == "failing" and malformed(text)):
            continue
        lines.append(text)
        if parts(text)[0].startswith(b"set_"):
            is_odd = malformed(text) or is_missing(text, LIMIT)
            if not is_odd and choose.random() < 0.7:
                lines += shown(text)
            # Of a UUID NVIDIA's takes the limit of the device 0 away.
            if is_odd or names_uuid(text) or choose.random() < 0.2:
                lines += resets(text)
        if starts_server(text) and world == "failing":
            break
    return lines or [b""]
