"""Holds the manifests of deploy/kubernetes against Kubernetes' published schemas, of every release from 1.26 on; unknown fields are errors, and so are rights that
our containers do not need.

usage: manifests.py DIRECTORY: the directory with base, overlays and examples. An overlay is rendered as kustomize does: its patches (JSON patches by path: replace, remove) applied to what they
name. Prints what is wrong, and how many were checked.
"""

import pathlib
import sys

import kubernetes_validate
import yaml

OLDEST = 26
# Newer releases have schemas of their own when the validator is updated.
NEWEST = 37


def documents(path):
    return [document for document in yaml.safe_load_all(path.read_text()) if document]


def rendered(overlay):
    """What a directory with a kustomization makes, by (kind, name)."""
    kustomization = documents(overlay / "kustomization.yaml")[0]
    made = {}
    for resource in kustomization.get("resources", []):
        at = overlay / resource
        for document in rendered(at).values() if at.is_dir() else documents(at):
            made[document["kind"], document["metadata"]["name"]] = document
    for patch in kustomization.get("patches", []):
        target = made[patch["target"]["kind"], patch["target"]["name"]]
        for step in yaml.safe_load(patch["patch"]):
            *way, last = [int(word) if word.isdigit() else word for word in step["path"].strip("/").split("/")]
            place = target
            for word in way:
                place = place[word]
            # What is to be replaced or removed must be there: kustomize refuses otherwise.
            place[last]
            if step["op"] == "replace":
                place[last] = step["value"]
            elif step["op"] == "remove":
                del place[last]
            else:
                sys.exit(f"{overlay}: a patch that {step['op']}s is not known here")
    return made


def loose(manifest):
    """Containers of ours that may do more than they need. The daemon's alone reaches the driver's device nodes and starts servers as users."""
    if manifest.get("kind") != "DaemonSet":
        return
    pod = manifest["spec"]["template"]["spec"]
    least = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    for container in pod.get("initContainers", []) + pod["containers"]:
        if container["name"] != "daemon" and container.get("securityContext") != least:
            yield container["name"]
    if pod.get("automountServiceAccountToken") is not False:
        yield "the pod has a token of the API server's"


def main():
    root = pathlib.Path(sys.argv[1])
    overlays = [root / "base", *sorted((root / "overlays").iterdir())]
    groups = {str(path.relative_to(root)): list(rendered(path).values()) for path in overlays}
    groups.update({str(path.relative_to(root)): documents(path) for path in sorted((root / "examples").glob("*.yaml"))})
    checked, wrong = 0, 0
    for name, manifests in groups.items():
        for manifest in manifests:
            for minor in range(OLDEST, NEWEST + 1):
                checked += 1
                try:
                    kubernetes_validate.validate(manifest, f"1.{minor}.0", strict=True)
                except kubernetes_validate.ValidationError as error:
                    wrong += 1
                    print(f"{name}: {manifest.get('kind')}: Kubernetes 1.{minor}: {error.message}")
            for what in loose(manifest):
                wrong += 1
                print(f"{name}: {manifest.get('kind')}: more rights than needed: {what}")
    print(f"checked {checked}")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
