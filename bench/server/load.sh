#!/usr/bin/env bash
# All figures of the server in one run: bench/server/load.sh OUTPUT.jsonl [SOAK_SECONDS]. Takes four minutes and the soak (600 s).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
output=${1:?usage: bench/server/load.sh OUTPUT.jsonl [SOAK_SECONDS]}
soak=${2:-600}
threads=$(nproc)
{
  ./dev bench server_load --streams 1000 --rate 20 --seconds 60 --concurrency 0 --server-threads "$threads"
  ./dev bench server_load --streams 0 --seconds 30 --concurrency 32 --server-threads "$threads"
  if ((soak)); then ./dev bench server_load --streams 0 --concurrency 0 --soak "$soak" --soak-rate 150 --server-threads "$threads"; fi
} >"$output"
