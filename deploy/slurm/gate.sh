# Shared by prolog.sh, epilog.sh and healthcheck.sh: settings, the state file and the log of decisions.
# POSIX sh, builtins only: the whole prolog of a healthy job starts no other program.
#
# shellcheck shell=sh disable=SC2034,SC2154  # scripts that read this file use what is set here, and set what is used

# SLURM sets neither PATH nor HOME. No name is globbed: words of the state file and of gres.conf hold brackets. What a
# site sets in the first line of a script, such as -e, would end it behind a decision that is logged already.
PATH=/usr/bin:/bin:/usr/sbin:/sbin
LC_ALL=C
export PATH LC_ALL
set +eCu -f
umask 022

is_number() {
    case $1 in '' | *[!0-9]* | ????????????*) return 1 ;; esac
}

# A number that arithmetic takes as it is written: 08 would be octal, and its error the end of the script.
is_count() {
    case $1 in 0?*) return 1 ;; esac
    is_number "$1"
}

# Numbers with blanks between them. Of others, such as 0,1,2 or 00 01, no line of the state file has the name.
are_counts() {
    for count in $1; do
        is_count "$count" || return 1
    done
}

# Take the settings of gate.conf, which lies beside the scripts. It is read, never executed: a slip of the pen in it
# costs a word in the log and closes nothing: a mode that is not understood, wherever it stands, is `observe`. The file
# ends at a line of its own, because a shell reads byte by byte and explanations would cost as much as the verdict.
read_settings() {
    runtime_dir=/run/nodevet on_stale=pass on_driver_refusal=fail mode=observe gpus=auto slip=
    probe_wait_seconds=5 drain_wait_seconds=4 boot_wait_seconds=45 boot_window_seconds=600 unclear_mode=
    if [ -r "$1" ]; then
        while read -r setting || [ -n "$setting" ]; do
            value=${setting#*=}
            case $setting in
            '# end of settings') break ;;
            '' | '#'*) ;;
            runtime_dir=/*[[:blank:]]*) slip=$setting ;;
            runtime_dir=/*) runtime_dir=$value ;;
            on_stale=pass | on_stale=fail) on_stale=$value ;;
            on_driver_refusal=pass | on_driver_refusal=fail) on_driver_refusal=$value ;;
            mode=gate | mode=observe) mode=$value ;;
            gpus=auto | gpus=pci | gpus=minor | gpus=all) gpus=$value ;;
            gpus=[0-9]*) are_counts "$value" && gpus=$value || slip=$setting ;;
            probe_wait_seconds=[0-9]*) is_count "$value" && probe_wait_seconds=$value || slip=$setting ;;
            drain_wait_seconds=[0-9]*) is_count "$value" && drain_wait_seconds=$value || slip=$setting ;;
            boot_wait_seconds=[0-9]*) is_count "$value" && boot_wait_seconds=$value || slip=$setting ;;
            boot_window_seconds=[0-9]*) is_count "$value" && boot_window_seconds=$value || slip=$setting ;;
            *) not_understood ;;
            esac
        done <"$1"
    fi
    [ -z "$unclear_mode" ] || mode=observe
    without_control
    state_file=$runtime_dir/state
    claims=$runtime_dir/claims
}

# A line that a file of Windows ends would break the log's own.
without_control() {
    case $slip in *[[:cntrl:]]*) slip="a line with a control character, as in a Windows file" ;; esac
}

# Look for settings below the line that ends them in gate.conf ($1), as `echo mode=observe >>gate.conf` writes one. Nobody
# reads them there, so what was meant by one that decides closes nothing. Only a job that would be kept off has the time.
read_below_end() {
    ended=''
    [ -r "$1" ] || return 0
    while read -r setting || [ -n "$setting" ]; do
        case $ended$setting in
        '# end of settings') ended=yes ;;
        yes*=*)
            name=${setting%%=*}
            below "${name%"${name##*[![:blank:]]}"}"
            ;;
        esac
    done <"$1"
    without_control
}

# Take in that a setting with the name $1 stands there.
below() {
    case $1 in
    [Mm][Oo][Dd][Ee] | on_stale | on_driver_refusal) mode=observe ;;
    runtime_dir | gpus | probe_wait_seconds | drain_wait_seconds | boot_wait_seconds | boot_window_seconds) ;;
    *) return ;;
    esac
    slip="below the end of settings: $setting"
}

# Remember the line of gate.conf that is not understood; what was meant by it closes nothing.
not_understood() {
    slip=$setting
    case $setting in
    *[Mm][Oo][Dd][Ee]*) unclear_mode=yes ;;
    *[Oo][Nn]_[Ss][Tt][Aa][Ll][Ee]*) on_stale=pass ;;
    *[Dd][Rr][Ii][Vv][Ee][Rr]*) on_driver_refusal=pass ;;
    esac
}

# Seconds since boot, whole and in hundredths.
read_uptime() {
    uptime=0.00
    read -r uptime rest </proc/uptime
    seconds=${uptime%.*}
    hundredths=${seconds}${uptime#*.}
}

# Append one line to the log of decisions, which the agent counts: DECISION UPTIME JOB WORDS. What cannot be logged
# is not worth a node: status 1 where the disk is full, the directory is missing or this is not the user of the agent.
log_decision() {
    # The agent moves a long log aside; where there is no agent it must not fill the disk (4 MiB in blocks of 512).
    trap '' XFSZ
    ulimit -f 8192 2>/dev/null
    [ -d "$runtime_dir" ] && [ ! -L "$runtime_dir/gate.log" ] || return 1
    { printf '%s %s %s %s\n' "$1" "$uptime" "${job:--}" "$2" >>"$runtime_dir/gate.log"; } 2>/dev/null
}

# Read the state file as the job of this prolog must see it; the job's GPUs are in $wanted (see wanted_gpus).
# Status 0: read. Then `fault` names the first hard fault that the job would meet and that closes the gate, `refusal` the
# driver's refusal of every GPU, `unpermitted` the first fault for which the agent has no permit to close, `doubt` the
# first thing that is unknown about its parts, and `load` is `probing` while a load of the agent's runs.
# Status 1: no verdict; `doubt` says why. A word that is not one of its column is no verdict: it may be a newer one.
read_verdict() {
    fault='' refusal='' unpermitted='' doubt='' carried=' ' load=idle agent='' missing=$wanted place=0 gone=0 lines=0 ended=
    foreign=
    [ "$wanted" != all ] || missing=
    if [ ! -e "$state_file" ] && [ ! -L "$state_file" ]; then
        doubt="$state_file does not exist: is nodevet agent running?"
        return 1
    fi
    if [ -L "$state_file" ] || [ ! -f "$state_file" ]; then
        doubt="$state_file is no regular file"
        return 1
    fi
    if [ ! -O "$state_file" ]; then
        doubt="$state_file belongs to another user: SLURM must run the prolog as the user of nodevet agent, root"
        return 1
    fi
    # One open file from the first line to the last: the agent replaces the file, never its content.
    if ! read_lines <"$state_file"; then
        fault='' refusal='' unpermitted=''
        doubt=${doubt:-"$state_file cannot be read"}
        return 1
    fi
    # A fault that no line carries is the node's own.
    case $carried in
    *" $node_hard "*) ;;
    *) take_fault "$node_verdict $node_hard" "$node_reason" ;;
    esac
    case $missing in *[!\ ]*) doubt=${doubt:-"$state_file has no line for GPU$missing"} ;; esac
    [ "$seconds" -lt "$fresh" ] || doubt=${doubt:-"$state_file expired: is nodevet agent running?"}
    return 0
}

# Take in the lines on standard input. Status 1 where they say nothing about this boot, or not in words that are known.
read_lines() {
    read -r node_verdict expires generation node_reason &&
        read -r form boot origin agent load node_hard action fresh name
    lines=2
    if [ "${form:-}" != nodevet-state/1 ]; then
        doubt="$state_file is malformed or of another version"
        return 1
    fi
    read -r this_boot </proc/sys/kernel/random/boot_id
    if [ "$boot" != "$this_boot" ]; then
        doubt="$state_file is of another boot"
        return 1
    fi
    if [ "$origin" != real ]; then
        doubt="$state_file belongs to a simulated node, which closes no gate"
        return 1
    fi
    if ! is_count "$expires" || ! is_count "$generation" || ! is_count "$fresh" ||
        [ -z "$node_reason" ] || [ -z "$name" ]; then
        doubt="$state_file is malformed: line 1 or 2 lacks a number or a field"
        return 1
    fi
    known_words "$node_verdict" "$node_hard" || return 1
    case $agent in
    starting | running | draining | drained | released | stopped) ;;
    *)
        doubt="$state_file: not understood: the agent is '$agent'"
        return 1
        ;;
    esac
    case $load in
    idle | probing) ;;
    *)
        doubt="$state_file: not understood: the load is '$load'"
        return 1
        ;;
    esac
    read_uptime
    if [ "$seconds" -ge "$expires" ]; then
        doubt="$state_file expired $((seconds - expires)) s ago: is nodevet agent running?"
        return 1
    fi
    while [ "$lines" -lt 1000 ] && read -r kind pci minor verdict hard action id reason; do
        if [ "$kind" = end ]; then
            [ "$pci $minor" != "$lines " ] || ended=yes
            break
        fi
        known_line || return 1
        lines=$((lines + 1))
        take_line
    done
    if [ "$ended" != yes ]; then
        doubt="$state_file is malformed: its end is missing"
        return 1
    fi
    if read -r rest || [ -n "$rest" ]; then
        doubt="$state_file is malformed: something follows its end"
        return 1
    fi
    return 0
}

# Status 1, with the doubt, where a verdict $1 or what it rests on $2 is not a word that is known.
known_words() {
    case $1 in
    ok | degraded | failed | unknown) ;;
    *)
        doubt="$state_file: not understood: the verdict '$1'"
        return 1
        ;;
    esac
    case $2 in
    hard | unpermitted | refused | observed | soft) ;;
    *)
        doubt="$state_file: not understood: a verdict that is '$2'"
        return 1
        ;;
    esac
}

# Status 1, with the doubt, where the line of a device is not one that is understood. The first is the node's own.
known_line() {
    case $kind,$lines in
    node,2) ;;
    node,* | *,2) doubt="$state_file is malformed: line 3 alone is the node's" && return 1 ;;
    accelerator,* | cpu,* | nic,* | memory,* | disk,*) ;;
    *) doubt="$state_file: not understood: a device '$kind'" && return 1 ;;
    esac
    if [ "$minor" != - ] && ! is_count "$minor"; then
        doubt="$state_file is malformed: '$minor' is no number of a device node"
        return 1
    fi
    if [ -z "$reason" ]; then
        doubt="$state_file is malformed: line $((lines + 1)) lacks a field"
        return 1
    fi
    known_words "$verdict" "$hard"
}

# Remember a fault that the job would meet: $1 is verdict and what it rests on, $2 the words for people.
take_fault() {
    case $1${foreign:+ elsewhere} in
    'failed hard') fault=${fault:-$2} ;;
    'failed refused' | 'unknown refused') refusal=${refusal:-$2} ;;
    'failed unpermitted'* | 'unknown unpermitted'*) unpermitted=${unpermitted:-$2} ;;
    'failed hard elsewhere' | 'failed refused elsewhere' | 'unknown refused elsewhere')
        unpermitted=${unpermitted:-"$2 (the permit to close is that of $foreign, not of $SLURMD_NODENAME)"}
        ;;
    esac
}

# Take in the line of one device; the job meets every part of the node that is not another job's GPU.
take_line() {
    # The permit stands for one of SLURM's nodes, and this may be another one of the same machine.
    case $kind,$id in
    "node,node:${SLURMD_NODENAME:-}") ;;
    node,node:*) foreign=${SLURMD_NODENAME:+${id#node:}} ;;
    esac
    case "$verdict $hard" in failed\ * | 'unknown refused' | 'unknown unpermitted') carried="$carried$hard " ;; esac
    if [ "$kind" = accelerator ]; then
        leads=$minor
        if [ "$order" = pci ]; then
            # slurmd counts a board that is gone until its next start, and not from then on: both numbers may be meant.
            leads=$place last=$place
            while [ "$last" -lt "$((place + gone))" ]; do
                last=$((last + 1))
                leads="$leads $last"
            done
            if [ "$pci" = - ]; then gone=$((gone + 1)); else place=$((place + 1)); fi
        fi
        met=
        for number in $leads; do
            case $wanted in all | *" $number "*) met=yes ;; esac
            case $missing in *" $number "*) missing="${missing%%" $number "*} ${missing#*" $number "}" ;; esac
        done
        # A GPU that no number leads to may be anybody's.
        if [ -z "$met" ] && { [ "$wanted" = ' ' ] || [ "$leads" != - ] || [ "$verdict" != failed ]; }; then
            return 0
        fi
    fi
    where="$kind $pci"
    [ "$kind" != node ] || where=node
    take_fault "$verdict $hard" "$where: $reason"
    # What the driver refuses while the agent lives is no ignorance: it has a setting of its own, needs a permit, and
    # closes nothing where the site lets it only be observed. A disk or a network card that no check speaks of is
    # unknown as well, and nothing hangs on it.
    case "$verdict $hard $kind" in
    'unknown soft node' | 'unknown soft accelerator' | 'unknown hard node' | 'unknown hard accelerator')
        doubt=${doubt:-"$kind $pci is unknown: $reason"}
        ;;
    esac
}
