#!/usr/bin/env bash
# curl against the built server, as the guide shows it: curl_client.sh PATH/TO/deepinfer
set -euo pipefail
command -v curl >/dev/null || { echo "skipped: no curl"; exit 77; }
program=$1
source "$(dirname "${BASH_SOURCE[0]}")/server_process.sh"
start_server "$program" --fake-engine --fake-rate 0 --log-format json --api-key key-1

# expect NAME PATTERN CURL_ARGUMENTS...
expect() {
  local name=$1 pattern=$2 got
  shift 2
  got=$(curl -sS --max-time 20 -H "Authorization: Bearer ${key:-key-1}" "$@") || { echo "FAIL $name: curl said $?"; failed=1; return; }
  if [[ $got == *"$pattern"* ]]; then echo "ok   $name"; else echo "FAIL $name: $got"; failed=1; fi
}
chat='{"model":"fake","messages":[{"role":"user","content":"SECRET-WORDS [[reply]]Hello.[[/reply]]"}],"thinking":{"type":"disabled"}'
expect chat '"content":"Hello."' "$url/v1/chat/completions" -H 'Content-Type: application/json' -d "$chat}"
expect stream 'data: [DONE]' -N "$url/v1/chat/completions" -H 'Content-Type: application/json' -d "$chat,\"stream\":true}"
expect messages '"type":"message"' "$url/v1/messages" -H 'Content-Type: application/json' -H 'anthropic-version: 2023-06-01' -d "$chat,\"max_tokens\":9}"
expect form '"code"' "$url/v1/chat/completions" -d "$chat}"
expect models '"object":"list"' "$url/v1/models"
expect metrics 'vllm:num_requests_running' "$url/metrics"
expect health '200' -o /dev/null -w '%{http_code}' "$url/health"
key=wrong expect unauthorised '401' -o /dev/null -w '%{http_code}' "$url/v1/models"
head -c 3000000 /dev/zero | tr '\0' 'u' >"$work/large"
{ printf '%s,"user":"' "$chat"; cat "$work/large"; printf '"}'; } >"$work/body"
expect large-body '"content":"Hello."' "$url/v1/chat/completions" -H 'Content-Type: application/json' -d "@$work/body"
expect chunked-body '"content":"Hello."' "$url/v1/chat/completions" -H 'Content-Type: application/json' -H 'Transfer-Encoding: chunked' -d "@$work/body"

stop_server
if grep -qE 'SECRET-WORDS|key-1' "$work/log"; then echo "FAIL a prompt or a key is in the log"; failed=1; fi
if ! grep -q '"event":"request".*"route":"/v1/chat/completions","status":200' "$work/log"; then echo "FAIL no log"; cat "$work/log"; failed=1; fi
exit $failed
