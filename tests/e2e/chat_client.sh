#!/usr/bin/env bash
# `deepinfer chat` with piped input, against a server on the fake engine: chat_client.sh PATH/TO/deepinfer
set -euo pipefail
program=$1
source "$(dirname "${BASH_SOURCE[0]}")/server_process.sh"
start_server "$program" --fake-engine --fake-rate 0 --log-format off --api-key key-1

# expect NAME EXPECTED INPUT ARGUMENTS...: standard output, whole
expect() {
  local name=$1 wanted=$2 input=$3 got
  shift 3
  got=$(printf '%s' "$input" | "$program" chat --url "$url" --api-key key-1 "$@" 2>"$work/err") || true
  if [[ $got == "$wanted" ]]; then echo "ok   $name"; else printf 'FAIL %s: got\n%s\n(%s)\n' "$name" "$got" "$(cat "$work/err")"; failed=1; fi
}
expect 'two turns' $'One.\nTwo.' $'[[reply]]One.[[/reply]]\n[[reply]]Two.[[/reply]]\n'
expect 'thinking' $'[thinking]\nHm.\n[answer]\nYes.' $'/think high\n[[reply]]Hm.</think>Yes.[[/reply]]\n/quit\nnever\n'
expect 'help and system' "$(printf '%s' $'/help\n' | "$program" chat --url "$url" --api-key key-1)"$'\nA.' $'/help\n/system Be brief.\n[[reply]]A.[[/reply]]\n'
printf '[{"name":"weather","parameters":{"type":"object"}}]' >"$work/tools.json"
call='[[reply]]\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name="weather">\n<｜DSML｜ parameter name="city" string="true">Rome</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>[[/reply]]'
expect 'tools' $'\nweather({"city": "Rome"})\nIt is dry.' "${call//\\n/}"$'\n[[reply]]It is dry.[[/reply]]\n' --tools "$work/tools.json"
if printf 'x\n' | "$program" chat --url "$url" --api-key wrong --model-name fake >/dev/null 2>"$work/err"; then echo "FAIL a wrong key is accepted"; failed=1; fi
grep -q 'the server answered 401: no valid API key' "$work/err" || { echo "FAIL: $(cat "$work/err")"; failed=1; }
stop_server
if printf 'x\n' | "$program" chat --url "$url" >/dev/null 2>"$work/err"; then echo "FAIL no server, no error"; failed=1; fi
grep -q 'Connection refused' "$work/err" || { echo "FAIL: $(cat "$work/err")"; failed=1; }

# Ctrl-C ends the answer that is being written, which is no error, and the conversation goes on.
start_server "$program" --fake-engine --fake-rate 20 --log-format off
mkfifo "$work/in"
"$program" chat --url "$url" <"$work/in" >"$work/said" 2>"$work/err" &
chat=$!
exec 3>"$work/in"
printf '[[reply]]Long %s end.[[/reply]]\n' "$(printf 'word %.0s' {1..400})" >&3
until grep -q word "$work/said"; do kill -0 "$chat"; sleep 0.05; done
kill -INT "$chat"
until [[ $(wc -l <"$work/said") -ge 1 ]]; do kill -0 "$chat"; sleep 0.05; done
printf '[[reply]]Two.[[/reply]]\n' >&3
exec 3>&-
if wait "$chat" && [[ ! -s $work/err ]] && grep -qx 'Two.' "$work/said" && ! grep -q 'end\.' "$work/said"; then echo 'ok   Ctrl-C'
else echo "FAIL Ctrl-C: $(cat "$work/said") ($(cat "$work/err"))"; failed=1; fi
stop_server

# The URL that a server on IPv6 prints.
if [[ -e /proc/net/if_inet6 ]] && grep -q ' lo$' /proc/net/if_inet6; then
  start_server "$program" --fake-engine --fake-rate 0 --log-format off --host ::1
  if [[ $(printf '[[reply]]Six.[[/reply]]\n' | "$program" chat --url "$url") == Six. ]]; then echo 'ok   IPv6'; else echo 'FAIL IPv6'; failed=1; fi
  stop_server
fi
exit $failed
