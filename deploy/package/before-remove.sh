#!/bin/sh
# $1 is remove or 0 at the end of a removal, and something else in an upgrade.
set -e
if [ -d /run/systemd/system ] && { [ "$1" = remove ] || [ "$1" = 0 ]; }; then
  systemctl disable --now drainer.service
fi
