#!/bin/sh
# Names every image of an overlay by its digest, the agent's included: `infra/pin-images.sh infra/overlays/mine > pinned.yaml`,
# then `kubectl apply --server-side -f pinned.yaml`. Needs kubectl, and docker with access to the registries; another
# program that prints the digest of the image it is given may be named in IMAGE_DIGEST.
set -eu
[ $# -eq 1 ] || { echo "usage: $0 OVERLAY" >&2; exit 2; }

digest_of() {
  if [ -n "${IMAGE_DIGEST:-}" ]; then
    "$IMAGE_DIGEST" "$1"
  else
    docker buildx imagetools inspect --format '{{.Manifest.Digest}}' "$1"
  fi
}

built=$(kubectl kustomize "$1")
images=$(printf '%s\n' "$built" | sed -n \
  -e 's/^[ -]*image: *"\{0,1\}\([^" ]*\)"\{0,1\}$/\1/p' -e 's/^ *agent_image = "\(.*\)"$/\1/p' | sort -u)
pins=
for image in $images; do
  case $image in *@*) continue ;; esac
  digest=$(digest_of "$image") || { echo "no registry has the image $image: push it first" >&2; exit 1; }
  printf '%s' "$digest" | grep -Eqx 'sha256:[0-9a-f]{64}' || { echo "$digest is no digest of $image" >&2; exit 1; }
  place=$(printf '%s' "$image" | sed 's/[.]/[.]/g')
  pins="$pins;s#\\(image: \"\\{0,1\\}\\)$place\\(\"\\{0,1\\}\\)\$#\\1$image@$digest\\2#"
  pins="$pins;s#\\(agent_image = \"\\)$place\"\$#\\1$image@$digest\"#"
done
printf '%s\n' "$built" | sed "${pins#;}"
