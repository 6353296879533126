#!/bin/sh
# The smallest command that tells nodevet of a device it does not know: one card, one temperature.
#
#   [[agent.backends.commands]]
#   name = "example"
#   argv = ["/usr/local/libexec/nodevet/example.sh", "0000:3b:00.0", "acme", "X1"]
#
# Arguments: PCI address, vendor (a lower-case word), model. NODEVET_ROOT stands before /sys.
set -eu

pci=$1 vendor=$2 model=$3
device="${NODEVET_ROOT:-/}/sys/bus/pci/devices/$pci"

# A card that is gone is not listed: the agent then tells that it is missing.
if [ ! -e "$device" ]; then
    printf '{"schema": "nodevet.readings/1", "devices": []}\n'
    exit 0
fi

# A sensor that cannot be read is a failure that is told, never a number that is made up.
millidegrees=$(cat "$device"/hwmon/hwmon*/temp1_input 2>/dev/null) || millidegrees=
case ${millidegrees#-} in
'' | *[!0-9]*) is_number=no ;;
*) is_number=yes ;;
esac
if [ $is_number = yes ]; then
    celsius=$(awk -v value="$millidegrees" 'BEGIN { printf "%.1f", value / 1000 }')
    told='"readings": [{"quantity": "temperature_celsius",
        "part": {"kind": "sensor", "name": "core"}, "value": '$celsius'}]'
else
    told='"failure": {"kind": "error", "detail": "no temperature below hwmon, or more than one: is the driver loaded?"}'
fi

cat <<END
{"schema": "nodevet.readings/1", "devices": [
    {"id": "$pci", "pci": "$pci", "kind": "accelerator", "vendor": "$vendor", "model": "$model", $told}
]}
END
