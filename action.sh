#!/usr/bin/env bash
# What action.yml runs: dtprof gate or dtprof check with the inputs that are in the environment. Needs dtprof on PATH.
set -euo pipefail

OUTPUT=${OUTPUT:-dtprof-out}
mkdir -p "$OUTPUT"
rm -f "$OUTPUT"/dtprof.{json,md,xml}
if [ -n "${RUN:-}" ]; then
    words=(check "$RUN" --baseline "${BASELINE:-dtprof-baseline.json}")
else
    words=(gate --baseline-cmd "${BASELINE_CMD:-}" --candidate-cmd "${CANDIDATE_CMD:-}")
    if [ -n "${PAIRS:-}" ]; then words+=(--pairs "$PAIRS"); fi
    if [ -n "${MINUTES:-}" ]; then words+=(--minutes "$MINUTES"); fi
fi
if [ -n "${MARGIN:-}" ]; then words+=(--margin "$MARGIN"); fi
if [ -n "${ALPHA:-}" ]; then words+=(--alpha "$ALPHA"); fi
if [ -n "${ARGUMENTS:-}" ]; then
    eval "more=($ARGUMENTS)"
    words+=("${more[@]}")
fi

code=0
dtprof "${words[@]}" --github --junit "$OUTPUT/dtprof.xml" --markdown "$OUTPUT/dtprof.md" --json > "$OUTPUT/dtprof.json" || code=$?
case $code in
    0) outcome=pass ;;
    1) outcome=fail ;;
    2) outcome=inconclusive ;;
    *) outcome=error ;;
esac
headline=
if [ -s "$OUTPUT/dtprof.md" ]; then headline=$(sed -n '3{s/\\|/|/g;s/&lt;/</g;p}' "$OUTPUT/dtprof.md"); fi
{
    echo "outcome=$outcome"
    echo "headline=$headline"
} >> "${GITHUB_OUTPUT:-/dev/stdout}"
if [ $code -eq 2 ] && [ "${INCONCLUSIVE:-warn}" = warn ]; then exit 0; fi
exit $code
