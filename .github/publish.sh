#!/bin/sh
# Pushes a release's images and chart to a registry, by digests that stay what they are.
#
#     publish.sh DIRECTORY REGISTRY
#
# DIRECTORY has the files of the release, which was made for REGISTRY, for example ghcr.io/owner. It needs skopeo and helm,
# both logged in there. Each line that it prints is an image and its digest: what the chart and the manifests refer to.
set -eu
cd "$1"
registry=$2
chart=$(echo bulkhead-*.tgz)
version=${chart#bulkhead-}
version=${version%.tgz}
digest=$(mktemp)
trap 'rm -f "$digest"' EXIT
for image in frontend privhelper; do
    name=bulkhead-$image
    # The policy is about whom to believe. These files are our own.
    skopeo --insecure-policy copy --quiet --all --preserve-digests --digestfile "$digest" \
        "oci-archive:$name-$version.oci.tar" "docker://$registry/$name:$version"
    if ! grep --quiet "image: $registry/$name:$version@$(cat "$digest")" bulkhead.yaml; then
        echo "publish.sh: bulkhead.yaml does not name $registry/$name:$version@$(cat "$digest"): the release was made for another registry" >&2
        exit 1
    fi
    echo "$image=$(cat "$digest")"
done
helm push "$chart" "oci://$registry/charts" >&2
