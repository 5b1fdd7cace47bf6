#!/bin/sh
# Runs a test once a pipeline has processed everything that was written before: no sleep, no polling of tables.
#
#   examples/ci_gate.sh kafka/billing/orders kafka/shipping/orders -- pytest tests/end_to_end
#
# PURGATORY_ADDRESS says where the daemon is, CI_GATE_TIMEOUT how long to wait (default 60s). Exit codes: the test's own,
# or those of `purgatory caught-up`: 11 when the pipeline did not catch up in time, 13 when nobody could tell.
set -eu

marks=""
while [ $# -gt 0 ] && [ "$1" != "--" ]; do
  marks="$marks $1"
  shift
done
if [ -z "$marks" ] || [ $# -lt 2 ]; then
  echo "usage: $0 MARK... -- COMMAND..." >&2
  exit 2
fi
shift

# shellcheck disable=SC2086 # marks have no spaces: a word each
purgatory caught-up $marks --timeout "${CI_GATE_TIMEOUT:-60s}" || {
  code=$?
  echo "the pipeline has not caught up; the test was not run" >&2
  exit "$code"
}
exec "$@"
