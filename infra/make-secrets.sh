#!/bin/sh
# Makes what the Secrets hold, as files: DIR/<namespace>/<secret>/<key>. Nothing is made twice: what is there stays,
# so a run after an upgrade adds only what is new. Needs openssl. Keep DIR private; ca/ca.key signs new certificates.
set -eu
umask 077
[ $# -eq 1 ] || { echo "usage: $0 DIR" >&2; exit 2; }
dir=$1
days=825

password() {  # a letter first: nats-server would read some runs of digits as numbers
  [ -s "$1" ] || { mkdir -p "$(dirname "$1")"; printf 'p%s' "$(openssl rand -hex 24)" > "$1"; }
}

for user in admin archiver operator steward worker writer; do
  password "$dir/orchard/nats-users/$user"
done
# Until 0.1 the orchestrator lived beside the sandboxes: who may create Pods there could mount its Secrets.
for secret in sandbox-keys agent-secret; do
  [ ! -d "$dir/orchard-sandboxes/$secret" ] || mv "$dir/orchard-sandboxes/$secret" "$dir/orchard/$secret"
done
rm -rf "$dir/orchard-sandboxes"
password "$dir/orchard/sandbox-keys/keys"
password "$dir/orchard/agent-secret/secret"
mkdir -p "$dir/orchard/sandbox-key" "$dir/orchard/nats-tls" "$dir/orchard/nats-ca" "$dir/ca"
# The orchestrator takes several keys, separated by commas; clients use the first.
cut -d, -f1 "$dir/orchard/sandbox-keys/keys" | tr -d '\n' > "$dir/orchard/sandbox-key/key"

if [ ! -s "$dir/ca/ca.key" ]; then
  openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 3650 -subj "/CN=orchard NATS" \
    -addext "keyUsage=critical,keyCertSign,cRLSign" -keyout "$dir/ca/ca.key" -out "$dir/orchard/nats-ca/ca.crt" 2>/dev/null
fi
cp "$dir/orchard/nats-ca/ca.crt" "$dir/orchard/nats-tls/ca.crt"
if [ ! -s "$dir/orchard/nats-tls/tls.key" ]; then
  cat > "$dir/ca/extensions" <<EXTENSIONS
subjectAltName=DNS:nats.orchard.svc.cluster.local,DNS:*.nats.orchard.svc.cluster.local,DNS:nats.orchard.svc,DNS:localhost
extendedKeyUsage=serverAuth,clientAuth
EXTENSIONS
  openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "/CN=nats" \
    -keyout "$dir/orchard/nats-tls/tls.key" -out "$dir/ca/nats.csr" 2>/dev/null
  openssl x509 -req -in "$dir/ca/nats.csr" -CA "$dir/orchard/nats-ca/ca.crt" -CAkey "$dir/ca/ca.key" \
    -CAserial "$dir/ca/ca.srl" -CAcreateserial -days "$days" -extfile "$dir/ca/extensions" -out "$dir/orchard/nats-tls/tls.crt" 2>/dev/null
fi
