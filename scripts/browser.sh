#!/usr/bin/env bash
# Install Chromium and its driver, for the tests of the leaderboard page, if apt-get is available and permitted.
# Otherwise do nothing: the tests that need them are skipped and listed.
set -euo pipefail
command -v chromium >/dev/null && command -v chromedriver >/dev/null && exit 0
root=
if [ "$(id -u)" -ne 0 ]; then
    root="sudo -n"
    $root true 2>/dev/null || exit 0
fi
command -v apt-get >/dev/null || exit 0
echo "installing chromium and chromium-driver for the tests of the leaderboard's page ..." >&2
if ! log=$($root apt-get update -qq 2>&1 && $root apt-get install -y -qq chromium chromium-driver 2>&1); then
    echo "installation failed: ${log##*$'\n'}" >&2
fi
