#!/bin/sh
# Writes what archives and packages hold beside the program: manual pages and completions into
# bin/pages, and the chart, which names this version, into bin/chart. `make dist` says VERSION,
# REVISION and DATE.
set -eu

rm -rf bin/pages bin/chart
mkdir -p bin/pages/man bin/pages/completion bin/chart

stamp=github.com/agentoutbox/drainer/cmd/drainer/cli
drainer=$(mktemp)
trap 'rm -f "$drainer"' EXIT
CGO_ENABLED=0 go build -trimpath -buildvcs=false -o "$drainer" \
  -ldflags "-s -w -X $stamp.version=$VERSION -X $stamp.revision=$REVISION -X $stamp.date=$DATE" ./cmd/drainer
"$drainer" man bin/pages/man
"$drainer" completion bash >bin/pages/completion/drainer.bash
"$drainer" completion zsh >bin/pages/completion/_drainer
"$drainer" completion fish >bin/pages/completion/drainer.fish

# Without what .helmignore names.
tar -C deploy/helm/drainer --exclude=.helmignore --exclude=.gitkeep --exclude=README.md.gotmpl --exclude=./ci -c . | tar -C bin/chart -x
sed -i.before "s/^version: .*/version: $VERSION/; s/^appVersion: .*/appVersion: $VERSION/" bin/chart/Chart.yaml
rm bin/chart/Chart.yaml.before
