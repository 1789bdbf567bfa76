#!/usr/bin/env bash
# The README's first commands as two ordinary users that this makes, one with a range of ids and one without: a small
# quick start in a clean clone, then the tests of what differs without root. Needs root, Debian and a Python that they
# may run.
set -euo pipefail
here="$(cd "$(dirname "$0")/.." && pwd)"
python="$(command -v "${PYTHON:-python3}")"
may_run() { setpriv --reuid=65534 --regid=65534 --clear-groups "$1" -c 'import ensurepip, venv' 2>/dev/null; }
may_run "$python" || python=/usr/bin/python3
may_run "$python" || { apt-get update -qq && apt-get install -y -qq python3-venv > /dev/null; }
may_run "$python" || { echo "no Python with venv that an ordinary user may run: apt-get install python3-venv"; exit 1; }
place="$(mktemp -d /var/tmp/orchard-users-XXXXXX)"
chmod 755 "$place"
made=()
clean() {
  for user in "${made[@]}"; do
    pgrep -U "$user" | xargs --no-run-if-empty kill -KILL || true
    userdel "$user" || true
  done
  rm -rf "$place"
}
trap clean EXIT

as_user() {  # USER COMMAND: with pip's settings and none of root's
  local user="$1"
  env -i HOME="$place/$user" USER="$user" LOGNAME="$user" LANG=C.UTF-8 PYTHON="$python" \
    PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin XDG_CACHE_HOME="$place/$user/.cache" \
    $(env | grep -E '^(PIP_[A-Z_]*|SSL_CERT_FILE|REQUESTS_CA_BUNDLE|CURL_CA_BUNDLE|[A-Za-z]*_PROXY|[a-z]*_proxy)=' || true) \
    setpriv --reuid="$user" --regid="$user" --init-groups bash -c "cd && $2"
}

for ids in range single; do
  user="orchard-$ids-$$"
  useradd --home-dir "$place/$user" --create-home --shell /bin/bash "$user"
  made+=("$user")
  if [ "$ids" = single ]; then sed -i "/^$user:/d" /etc/subuid /etc/subgid; fi
  if [ "$ids" = range ] && ! grep -q "^$user:" /etc/subuid; then
    echo "$user:1000000000:65536" | tee -a /etc/subuid >> /etc/subgid
  fi
  git clone --quiet "$here" "$place/$user/orchard"
  chown -R "$user:" "$place/$user"
  echo "== make quickstart as an ordinary user ($ids)"
  as_user "$user" 'cd orchard && make quickstart ARGS="--tasks 2 --samples 1 --workers 2" 2>&1 | tee quickstart.log'
  as_user "$user" 'cd orchard && .venv/bin/orchard sql "select count(*), count(*) filter (status <> '"'aborted'"') from rollouts"' \
    | grep -E '2[^0-9]+2' || { echo "not every rollout of the quick start was graded"; exit 1; }
  echo "== tests as an ordinary user ($ids)"
  as_user "$user" 'cd orchard && make .venv/.installed && .venv/bin/pytest -q -p no:cacheprovider tests/injector/test_lifecycle.py tests/orchard/test_failing_start.py'
done
