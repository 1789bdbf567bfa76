#!/bin/sh
# Builds the four images as root on a Debian machine with neither Docker nor a registry: `infra/build-images.sh`, with buildah and
# debootstrap installed. The base that the Containerfile names is made of Debian's own packages: for a look at what the
# images do, and for tests; publish images on the base of the Containerfile.
set -eu
cd "$(dirname "$0")/.."
export BUILDAH_ISOLATION=chroot STORAGE_DRIVER="${STORAGE_DRIVER:-vfs}"
base=docker.io/library/python:3.11-slim-bookworm

if ! buildah inspect --type image "$base" > /dev/null 2>&1; then
  root=$(mktemp -d)
  trap 'rm -rf "$root"' EXIT
  debootstrap --variant=minbase --include=python3,python3-pip,ca-certificates bookworm "$root" ${DEBIAN_MIRROR:-}
  ln -s python3 "$root/usr/bin/python"
  rm -rf "$root"/usr/lib/python3*/EXTERNALLY-MANAGED "$root"/var/cache/apt/archives/*.deb
  container=$(buildah from scratch)
  buildah copy --quiet "$container" "$root" /
  buildah config --env PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin "$container"
  buildah commit --quiet --rm "$container" "$base"
fi
for target in agent worker writer orchestrator; do  # the certificates are this machine's, for a package index of its own
  buildah bud --layers --pull-never --volume /etc/ssl/certs:/etc/ssl/certs:ro --ignorefile infra/Containerfile.dockerignore \
    --file infra/Containerfile --target "$target" --tag "orchard/$target:0.1.0" .
done
