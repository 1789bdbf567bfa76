#!/bin/sh
# Makes what each host has in /etc/orchard: DIR/hosts/HOST/, and DIR/hosts/operator/ for the laptop. The first host runs
# NATS, writer, steward and archiver; each other one sandboxes and workers. A host is a DNS name or an IPv4 address.
# With a file DIR/fronts, each host in it has one address for the sandbox services of all worker hosts.
# Nothing secret is made twice: a run with one more host adds that host. Needs openssl. Keep DIR private.
set -eu
umask 077
[ $# -ge 3 ] || { echo "usage: $0 DIR LOG_HOST WORKER_HOST..." >&2; exit 2; }
dir=$1 log=$2
shift 2
here=$(dirname "$0")
[ -s "$dir/store.env" ] || { echo "$dir/store.env is missing: write ORCHARD_STORE=s3://... and the keys of S3 into it" >&2; exit 2; }
[ -s "$dir/orchard.toml" ] || { echo "$dir/orchard.toml is missing: write the [endpoints] of your models into it" >&2; exit 2; }

sh "$here/../make-secrets.sh" "$dir"
users=$dir/orchard/nats-users
# EVENT_STREAMS is the number for new campaigns. The rights are for the most there ever were: no stream is removed.
rights=$(cat "$dir/event-streams" 2>/dev/null || echo 1)
streams=${EVENT_STREAMS:-$rights}
case $streams in
  [1-9] | 1[0-6]) ;;
  *) echo "EVENT_STREAMS is $streams: give a number from 1 to 16" >&2; exit 2 ;;
esac
[ "$streams" -le "$rights" ] || rights=$streams
echo "$rights" > "$dir/event-streams"

certificate() {  # certificate HOST: for the server on it
  place=$dir/hosts/$1
  [ ! -s "$place/tls.key" ] || return 0
  case $1 in *[!0-9.]*) name=DNS:$1 ;; *) name=IP:$1 ;; esac
  printf 'subjectAltName=%s,DNS:localhost,IP:127.0.0.1\nextendedKeyUsage=serverAuth\n' "$name" > "$dir/ca/extensions"
  openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "/CN=$1" \
    -keyout "$place/new.key" -out "$dir/ca/host.csr" 2>/dev/null
  openssl x509 -req -in "$dir/ca/host.csr" -CA "$dir/ca/ca.crt" -CAkey "$dir/ca/ca.key" \
    -CAserial "$dir/ca/ca.srl" -CAcreateserial -days 825 -extfile "$dir/ca/extensions" -out "$place/tls.crt" 2>/dev/null
  chmod 640 "$place/new.key"  # of the group orchard, for NATS
  mv "$place/new.key" "$place/tls.key"
}

role() {  # role HOST FILE USER: who a process is to NATS
  printf 'ORCHARD_NATS__USER=%s\nNATS_PASSWORD=%s\n' "$3" "$(cat "$users/$3")" > "$dir/hosts/$1/$2.env"
}

settings() {  # settings HOST PLACE: what every process on it reads; PLACE is where it will have these files
  cp "$dir/orchard/nats-ca/ca.crt" "$dir/hosts/$1/ca.crt"
  {
    cat "$dir/store.env"
    printf 'ORCHARD_NATS__URL=tls://%s:4222\nORCHARD_NATS__TLS_CA=%s/ca.crt\n' "$log" "$2"
    printf 'ORCHARD_NATS__PASSWORD_ENV=NATS_PASSWORD\nORCHARD_SANDBOX__TLS_CA=%s/ca.crt\n' "$2"
    [ "$rights" = 1 ] || printf 'ORCHARD_NATS__EVENT_STREAMS=%s\n' "$streams"
    printf 'ORCHARD_CONFIG=%s/orchard.toml\n' "$2"
  } > "$dir/hosts/$1/settings.env"
  cp "$dir/orchard.toml" "$dir/hosts/$1/orchard.toml"
  chmod 644 "$dir/hosts/$1/ca.crt" "$dir/hosts/$1/orchard.toml"
}

mkdir -p "$dir/hosts/$log" "$dir/hosts/operator"
settings "$log" /etc/orchard
certificate "$log"
for user in writer steward archiver; do
  role "$log" $user $user
done
cp "$here/nats.conf" "$dir/hosts/$log"
awk -v streams="$rights" '{ print } /orchard\.events\.|ORCHARD_EVENTS/ {
  for (stream = 1; stream < streams; stream++) {
    line = $0
    gsub(/orchard\.events\./, "orchard.events-" stream ".", line)
    gsub(/ORCHARD_EVENTS/, "ORCHARD_EVENTS_" stream, line)
    print line
  }
}' "$here/../chart/files/accounts.conf" > "$dir/hosts/$log/accounts.conf"
cp "$dir/store.env" "$dir/hosts/$log/metrics.env"
# The chart's rules as Prometheus reads them, for the one server there is here.
sed -e '1,/^spec:/d' -e 's/^  //' -e 's/== 1) < 3/== 1) < 1/' "$here/../chart/files/rules.yaml" > "$dir/hosts/$log/rules.yaml"
{
  cat "$here/prometheus.yml"
  printf '          - "%s:8443"\n' "$@"
} > "$dir/hosts/$log/prometheus.yml"
for file in nats.conf accounts.conf rules.yaml prometheus.yml; do
  chmod 644 "$dir/hosts/$log/$file"
done
for user in "$users"/*; do
  printf '%s_PASSWORD=%s\n' "$(basename "$user" | tr a-z A-Z)" "$(cat "$user")"
done > "$dir/hosts/$log/nats.env"
echo "MAX_FILE_STORE=${MAX_FILE_STORE:-45GB}" >> "$dir/hosts/$log/nats.env"

settings operator "$(cd "$dir" && pwd)/hosts/operator"
role operator operator operator
for host in "$@"; do
  place=$dir/hosts/$host
  mkdir -p "$place"
  settings "$host" /etc/orchard
  certificate "$host"
  role "$host" worker worker
  printf 'ORCHARD_UP__SHUTDOWN_SECONDS=600\nORCHARD_WORKER__SLOTS=8\n' >> "$place/worker.env"
  [ -s "$place/sandbox.env" ] || printf 'ORCHARD_SANDBOX__URL=https://%s:8443\nSANDBOX_API_KEY=p%s\n' \
    "$host" "$(openssl rand -hex 24)" > "$place/sandbox.env"
  cp "$place/sandbox.env" "$dir/hosts/operator/$host.env"
  for file in models.env agent.env; do
    [ ! -s "$dir/$file" ] || cp "$dir/$file" "$place/$file"
  done
done

[ -s "$dir/fronts" ] || { rm -f "$dir"/hosts/*/orchestrator.env; exit 0; }
# A key that all services accept beside their own, which stays the one that may do everything.
key=$dir/front.key
[ -s "$key" ] || printf 'p%s' "$(openssl rand -hex 24)" > "$key"
for host in "$@"; do
  own=$(sed -n 's/^SANDBOX_API_KEY=//p' "$dir/hosts/$host/sandbox.env")
  printf 'SANDBOX_ADMIN_KEYS=%s\nSANDBOX_API_KEY=%s\n' "$own" "$(cat "$key")" > "$dir/hosts/$host/orchestrator.env"
done
for front in $(cat "$dir/fronts"); do
  place=$dir/hosts/$front
  mkdir -p "$place"
  cp "$dir/orchard/nats-ca/ca.crt" "$place/ca.crt"
  certificate "$front"
  printf 'ORCHARD_SANDBOX__URL=https://%s:8444\nSANDBOX_API_KEY=%s\n' "$front" "$(cat "$key")" > "$place/front.env"
  cp "$place/front.env" "$dir/hosts/operator/$front-front.env"
  for host in "$@"; do  # named after its host, whatever others there are
    name=w$(printf %s "$host" | openssl dgst -sha256 -r | cut -c1-7)
    printf '[upstreams.%s]\nurl = "https://%s:8443"\ntls_ca = "/etc/orchard/ca.crt"\n' "$name" "$host"
  done > "$place/front.toml"
  chmod 644 "$place/front.toml" "$place/ca.crt"
done
