"""images.py ROOT OUT: writes pause.tar and program.tar (docker-archive, one layer) of the root file system ROOT.

images.py ROOT OUT NAME ENTRY: one image of that name and entry point, as image.tar.
"""

import hashlib
import io
import json
import os
import sys
import tarfile

root, out, *named = sys.argv[1:]
layer_file = io.BytesIO()
with tarfile.open(fileobj=layer_file, mode="w") as tar:
    for name in sorted(os.listdir(root)):
        tar.add(f"{root}/{name}", arcname=name)
layer = layer_file.getvalue()


def image(file, name, entry):
    """One image of the layer."""
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Entrypoint": entry, "Env": ["PATH=/bin"]},
        "rootfs": {"type": "layers", "diff_ids": ["sha256:" + hashlib.sha256(layer).hexdigest()]},
    }
    config = json.dumps(config).encode()
    config_name = hashlib.sha256(config).hexdigest() + ".json"
    manifest = [{"Config": config_name, "RepoTags": [name], "Layers": ["layer.tar"]}]
    files = ((config_name, config), ("layer.tar", layer), ("manifest.json", json.dumps(manifest).encode()))
    with tarfile.open(f"{out}/{file}.tar", "w") as tar:
        for path, content in files:
            entry_of_file = tarfile.TarInfo(path)
            entry_of_file.size = len(content)
            tar.addfile(entry_of_file, io.BytesIO(content))


if named:
    image("image", named[0], named[1:])
else:
    image("pause", "local.test/pause:1", ["/bin/sleep", "2147483647"])
    image("program", "local.test/program:1", ["/bin/sh"])
