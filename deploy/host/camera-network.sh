#!/bin/sh
# Prepare a network interface for a GigE Vision camera: camera-network.sh enp3s0 [ADDRESS/LENGTH]
# Jumbo frames, large receive rings, no power saving. As root; lasts until the next boot (docs/deployment.md: for good).
set -eu
interface=${1:?which interface? for example: camera-network.sh enp3s0 192.168.7.1/24}
address=${2:-}
[ -d "/sys/class/net/$interface" ] || { echo "no interface $interface; there are: $(ls /sys/class/net | tr '\n' ' ')" >&2; exit 2; }
ip link set "$interface" mtu 9000 || echo "$interface takes no jumbo frames: set the camera's packet size to 1500" >&2
[ -z "$address" ] || ip address replace "$address" dev "$interface"
ip link set "$interface" up
if command -v ethtool >/dev/null; then
    most=$(ethtool -g "$interface" 2>/dev/null | awk '/^RX:/ { print $2; exit }')
    [ -z "$most" ] || ethtool -G "$interface" rx "$most" 2>/dev/null || true
    # Coalesce interrupts, but bound the delay.
    ethtool -C "$interface" rx-usecs 100 2>/dev/null || true
    ethtool --set-eee "$interface" eee off 2>/dev/null || true
fi
ip -brief address show "$interface"
