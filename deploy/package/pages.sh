#!/bin/sh
# Writes manual pages and completions into bin/pages, for archives and packages.
set -eu
pages=bin/pages
rm -rf "$pages"
mkdir -p "$pages/man" "$pages/completion"
date=$(TZ=UTC git log -1 --date=format-local:%Y-%m-%dT%H:%M:%SZ --format=%cd)
drainer=$(mktemp)
trap 'rm -f "$drainer"' EXIT
go build -ldflags "-X github.com/agentoutbox/drainer/cmd/drainer/cli.date=$date" -o "$drainer" ./cmd/drainer
"$drainer" man "$pages/man"
"$drainer" completion bash >"$pages/completion/drainer.bash"
"$drainer" completion zsh >"$pages/completion/_drainer"
"$drainer" completion fish >"$pages/completion/drainer.fish"
