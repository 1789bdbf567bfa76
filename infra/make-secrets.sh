#!/bin/sh
# Makes what the Secrets hold, as files: DIR/<namespace>/<secret>/<key>; the namespace is `orchard`, unless a second
# argument names that of the chart's release, for which the servers' certificate is made; a third names the cluster's
# domain, which is `cluster.local` else. Nothing is made twice: what is there stays, so a run after an upgrade adds only what is new. Needs openssl. Keep DIR private; ca/ca.key signs
# new certificates.
set -eu
umask 077
[ $# -ge 1 ] && [ $# -le 3 ] || { echo "usage: $0 DIR [NAMESPACE [CLUSTER_DOMAIN]]" >&2; exit 2; }
dir=$1
namespace=${2:-orchard}
domain=${3:-cluster.local}
own=$dir/$namespace
days=825

password() {  # a letter first: nats-server would read some runs of digits as numbers
  [ -s "$1" ] || { mkdir -p "$(dirname "$1")"; printf 'p%s' "$(openssl rand -hex 24)" > "$1"; }
}

for user in admin archiver operator reader steward submitter worker writer; do
  password "$own/nats-users/$user"
done
# Until 0.1 the orchestrator lived beside the sandboxes: who may create Pods there could mount its Secrets.
for secret in sandbox-keys agent-secret; do
  [ ! -d "$dir/orchard-sandboxes/$secret" ] || mv "$dir/orchard-sandboxes/$secret" "$own/$secret"
done
rm -rf "$dir/orchard-sandboxes"
password "$own/sandbox-keys/keys"
password "$own/agent-secret/secret"
password "$own/page-token/page.token"
mkdir -p "$own/sandbox-key" "$own/nats-tls" "$own/nats-ca" "$dir/ca"
# The orchestrator takes several keys, separated by commas; clients use the first.
cut -d, -f1 "$own/sandbox-keys/keys" | tr -d '\n' > "$own/sandbox-key/key"

if [ ! -s "$dir/ca/ca.key" ]; then
  # A name of its own: of two authorities with one name clients would try one alone.
  openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 3650 -subj "/CN=orchard NATS $(openssl rand -hex 4)" \
    -addext "keyUsage=critical,keyCertSign,cRLSign" -keyout "$dir/ca/ca.key" -out "$dir/ca/ca.crt" 2>/dev/null
fi
[ -s "$dir/ca/ca.crt" ] || cp "$own/nats-ca/ca.crt" "$dir/ca/ca.crt"  # until 0.1 it was there alone
cat "$dir/ca/ca.crt" > "$own/nats-ca/ca.crt"
[ ! -s "$dir/ca/old.crt" ] || cat "$dir/ca/old.crt" >> "$own/nats-ca/ca.crt"  # while it is exchanged both are trusted
cp "$own/nats-ca/ca.crt" "$own/nats-tls/ca.crt"
if [ ! -s "$own/nats-tls/tls.key" ]; then
  cat > "$dir/ca/extensions" <<EXTENSIONS
subjectAltName=DNS:nats.$namespace.svc.$domain,DNS:nats-monitoring.$namespace.svc.$domain,DNS:*.nats.$namespace.svc.$domain,DNS:nats.$namespace.svc,DNS:localhost
extendedKeyUsage=serverAuth,clientAuth
EXTENSIONS
  openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "/CN=nats" \
    -keyout "$own/nats-tls/tls.key" -out "$dir/ca/nats.csr" 2>/dev/null
  openssl x509 -req -in "$dir/ca/nats.csr" -CA "$dir/ca/ca.crt" -CAkey "$dir/ca/ca.key" \
    -CAserial "$dir/ca/ca.srl" -CAcreateserial -days "$days" -extfile "$dir/ca/extensions" -out "$own/nats-tls/tls.crt" 2>/dev/null
fi
