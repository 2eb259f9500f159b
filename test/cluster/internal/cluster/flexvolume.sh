#!/bin/sh
# Driver of volumes that one node at a time can attach: directories that are mounted on that node.
# The device of a volume is its directory.
set -e
case "$1" in
init) echo '{"status":"Success","capabilities":{"attach":true}}' ;;
attach) # OPTIONS NODE
  echo "{\"status\":\"Success\",\"device\":\"$(echo "$2" | sed 's/.*"directory":"\([^"]*\)".*/\1/')\"}" ;;
waitforattach) # DEVICE OPTIONS
  echo "{\"status\":\"Success\",\"device\":\"$2\"}" ;;
isattached) echo '{"status":"Success","attached":true}' ;;
detach) echo '{"status":"Success"}' ;;
mountdevice) # MOUNTPOINT DEVICE OPTIONS
  mkdir -p "$2"
  mount --bind "$3" "$2"
  echo '{"status":"Success"}' ;;
unmountdevice) # MOUNTPOINT
  umount "$2"
  echo '{"status":"Success"}' ;;
*) echo '{"status":"Not supported"}' ;;
esac
