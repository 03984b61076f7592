# Sourced by the tests in shell: starts the built program on free ports and stops it by its process id.
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
work=$(mktemp -d)
server=
failed=0
trap '[[ -z $server ]] || kill "$server" 2>/dev/null || true; rm -rf "$work"' EXIT

# start_server PROGRAM ARGUMENTS...: sets $server, $url and $admin (empty without --admin-port); its output is in $work/out, its log in $work/log.
start_server() {
  local program=$1
  shift
  "$program" serve "$root/models/nano" --port 0 "$@" >"$work/out" 2>"$work/log" &
  server=$!
  until grep -q '^listening' "$work/out"; do
    kill -0 "$server" 2>/dev/null || { echo "FAIL the server did not start: $(cat "$work/log")"; exit 1; }
    sleep 0.05
  done
  url=$(sed -n 's/^listening on //p' "$work/out")
  admin=$(sed -n 's/^admin *//p' "$work/out")
}

# stop_server: on SIGTERM it ends with 0.
stop_server() {
  kill -TERM "$server"
  wait "$server" || { echo "FAIL the server ended with $?"; failed=1; }
  server=
}
