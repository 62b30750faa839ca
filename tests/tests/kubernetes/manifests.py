"""Holds the manifests of deploy/kubernetes against Kubernetes' published schemas, of every release from 1.26 on; unknown fields are errors.

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
    print(f"checked {checked}")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
