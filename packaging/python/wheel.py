"""Makes the wheel: `wheel.py --tree TREE --processor x86_64 --package DIR --schema FILE --readme FILE --version V --out DIR`.

TREE has bin, lib and share, as an installation has them. The same files make the same bytes.
libdeflate (the module `deflate`) packs them: zlib's best is 3 % larger.
"""

import argparse
import base64
import hashlib
import json
import keyword
import struct
import zipfile
import zlib
from pathlib import Path

import deflate

NAME = "openmps"
PLATFORMS = ("manylinux_2_17", "manylinux2014")
# Of a zip file: the head of a file's content, its entry in the list at the end, the end of the list.
CONTENT = struct.Struct("<4s5H3I2H")
ENTRY = struct.Struct("<4s6H3I5H2I")
END = struct.Struct("<4s4H2IH")
# By the format's version 2.0; made by a Unix of version 2.0.
NEEDED, MADE_BY = 20, 3 << 8 | 20
DEFLATED = 8
# 1980-01-01 00:00, the first moment that a zip file can name.
TIME, DATE = 0, 1 << 5 | 1
BEST_LEVEL = 12
TYPES = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"}


def of_schema(schema):
    """The Python type of a JSON schema, as an annotation."""
    if "$ref" in schema:
        return schema["$ref"].rsplit("/", 1)[1]
    if "anyOf" in schema or "oneOf" in schema:
        return " | ".join(of_schema(one) for one in schema.get("anyOf") or schema["oneOf"])
    if "enum" in schema:
        return "Literal[" + ", ".join(repr(value) for value in schema["enum"]) + "]"
    if "const" in schema:
        return f"Literal[{schema['const']!r}]"
    kind = schema.get("type")
    if isinstance(kind, list):
        return " | ".join(of_schema({**schema, "type": one}) for one in kind)
    if kind == "array":
        return f"list[{of_schema(schema['items'])}]" if "items" in schema else "list[Any]"
    if kind == "object":
        values = schema.get("additionalProperties")
        return f"dict[str, {of_schema(values)}]" if isinstance(values, dict) else "dict[str, Any]"
    return TYPES.get(kind, "Any")


def documents(schema):
    """A module with a type for each document and its parts."""
    lines = [
        '"""What commands print with --json, by the names of docs/schema.json."""',
        "",
        "from __future__ import annotations",
        "",
        "from typing import Any, Literal, TypedDict",
    ]
    for name, one in schema["$defs"].items():
        lines += ["", ""]
        fields = one.get("properties")
        if not fields or any(not key.isidentifier() or keyword.iskeyword(key) for key in fields):
            lines.append(f"{name} = {of_schema(one)}")
            continue
        required = set(one.get("required", ()))
        optional = [key for key in fields if key not in required]
        base = "TypedDict"
        if optional and required:
            base = f"_{name}"
            lines.append(f"class {base}(TypedDict):")
            lines += [f"    {key}: {of_schema(fields[key])}" for key in fields if key in required]
            lines += ["", ""]
        total = ", total=False" if optional else ""
        lines.append(f"class {name}({base}{total}):")
        description = one.get("description", "").replace("\\", "\\\\").replace('"""', "'''")
        if description:
            lines.append(f'    """{description}"""')
        shown = optional if optional else list(fields)
        lines += [f"    {key}: {of_schema(fields[key])}" for key in shown]
    return "\n".join(lines) + "\n"


def metadata(version, readme):
    return (
        f"Metadata-Version: 2.1\nName: {NAME}\nVersion: {version}\n"
        "Summary: Share a GPU between CUDA programs\n"
        "License: MIT OR Apache-2.0\nRequires-Python: >=3.9\n"
        "Classifier: Framework :: Pytest\nClassifier: Operating System :: POSIX :: Linux\n"
        "Classifier: Typing :: Typed\n"
        f"Description-Content-Type: text/markdown\n\n{readme}"
    )


def archive(files):
    """A zip file of {name: (content, whether it can be executed)}."""
    contents, entries = b"", b""
    for name, (content, is_executable) in files.items():
        name = name.encode("ascii")
        packed = bytes(deflate.deflate_compress(content, BEST_LEVEL))
        common = (NEEDED, 0, DEFLATED, TIME, DATE, zlib.crc32(content), len(packed), len(content))
        mode = (0o100755 if is_executable else 0o100644) << 16
        place = (0, 0, 0, 0, mode, len(contents))
        entries += ENTRY.pack(b"PK\1\2", MADE_BY, *common, len(name), *place) + name
        contents += CONTENT.pack(b"PK\3\4", *common, len(name), 0) + name + packed
    count = len(files)
    return contents + entries + END.pack(b"PK\5\6", 0, 0, count, count, len(entries), len(contents), 0)


def main():
    parser = argparse.ArgumentParser()
    for option in ("tree", "package", "schema", "readme", "out"):
        parser.add_argument(f"--{option}", type=Path, required=True)
    for option in ("version", "processor"):
        parser.add_argument(f"--{option}", required=True)
    arguments = parser.parse_args()
    information = f"{NAME}-{arguments.version}.dist-info"
    data = f"{NAME}-{arguments.version}.data"

    # By their names in the wheel: what is in it, and whether it can be executed.
    files = {}
    for file in sorted(arguments.package.iterdir()):
        if file.suffix == ".py" or file.name == "py.typed":
            files[f"{NAME}/{file.name}"] = (file.read_bytes(), False)
    schema = json.loads(arguments.schema.read_text())
    files[f"{NAME}/documents.py"] = (documents(schema).encode(), False)
    files[f"{data}/scripts/{NAME}"] = ((arguments.tree / "bin" / NAME).read_bytes(), True)
    for file in sorted(arguments.tree.rglob("*")):
        place = file.relative_to(arguments.tree)
        if file.is_file() and not file.is_symlink() and place.parts[0] != "bin":
            files[f"{data}/data/{place}"] = (file.read_bytes(), False)
    readme = arguments.readme.read_text()
    files[f"{information}/METADATA"] = (metadata(arguments.version, readme).encode(), False)
    platforms = [f"{platform}_{arguments.processor}" for platform in PLATFORMS]
    tags = "".join(f"Tag: py3-none-{platform}\n" for platform in platforms)
    wheel = f"Wheel-Version: 1.0\nGenerator: openmps\nRoot-Is-Purelib: false\n{tags}"
    files[f"{information}/WHEEL"] = (wheel.encode(), False)
    files[f"{information}/entry_points.txt"] = (b"[pytest11]\nopenmps = openmps._pytest\n", False)

    record = ""
    for name, (content, _) in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        record += f"{name},sha256={digest},{len(content)}\n"
    files[f"{information}/RECORD"] = ((record + f"{information}/RECORD,,\n").encode(), False)

    arguments.out.mkdir(parents=True, exist_ok=True)
    path = arguments.out / f"{NAME}-{arguments.version}-py3-none-{'.'.join(platforms)}.whl"
    path.write_bytes(archive(files))
    with zipfile.ZipFile(path) as written:
        wrong = written.testzip()
    if wrong or written.namelist() != list(files):
        raise SystemExit(f"{path} is not as it should be: {wrong}")
    print(path)


if __name__ == "__main__":
    main()
