#!/bin/sh
# Everything that has to run once on a GPU, in pieces of at most nine minutes that can be resumed; 40 minutes together.
#
#   lab/research/gpu_day.sh [--rehearse] [--data FOLDER] [--out FOLDER] [PIECE…]
#
# Without names all pieces run that have not succeeded before in the output folder (build/gpu-day); a piece that fails
# or takes too long does not stop the others. The last one, `report`, writes what was found with device, versions and
# commit: to lab/research/results/, or with --rehearse, which tries everything on a CPU in small sizes, to the output folder.
#
# train_video_1 to train_video_4 train `video` on clips, in at most 36 minutes more: they run when named, in this order.
set -u
cd "$(dirname "$0")/../.."
rehearse= data=${SCI_STREAM_DATA:-} out= pieces=
while [ $# -gt 0 ]; do
    case $1 in
        --rehearse) rehearse=yes ;;
        --data) data=$2; shift ;;
        --out) out=$2; shift ;;
        -h | --help) sed -n '2,11s/^# \{0,1\}//p' "$0"; exit 0 ;;
        -*) echo "unknown option $1; expected --rehearse, --data, --out" >&2; exit 2 ;;
        *) pieces="$pieces $1" ;;
    esac
    shift
done
if [ -n "$rehearse" ]; then
    out=${out:-build/gpu-rehearsal} device=cpu slowly=8 net=ffdnet-lite least=1 bits=float32
else
    out=${out:-build/gpu-day} device=cuda slowly=1 net=ffdnet least=20 bits=half
fi
pieces=${pieces:-environment tests tests_slow speed speed_lite speed_float32 stacks large quality quality_half profile train report}
python=${PYTHON:-python}
[ -x .venv/bin/python ] && python=.venv/bin/python
mkdir -p "$out"
bench="$python -m sci_stream bench"

# How long a piece may take, s: 40 minutes together. A CPU in use by others is given longer.
limit() {
    case $1 in
        environment | report) echo 60 ;;
        tests_slow | speed_float32 | profile) echo 120 ;;
        speed | stacks) echo 360 ;;
        train) echo 300 ;;
        train_video_*) echo 540 ;;
        *) echo 180 ;;
    esac
}

piece() {
    case $1 in
        environment) $python lab/research/gpu_day.py environment "$out/environment.json" --device $device ;;
        tests) tests "not slow" ;;
        tests_slow) tests "slow" ;;
        speed) $bench speed --denoiser ffdnet --warm --sizes "$(sizes main)" --iterations "$(few)" --device $device --json "$out/speed.json" ;;
        speed_lite) $bench speed --denoiser ffdnet-lite --warm --sizes "$(sizes main)" --iterations "$(few)" --device $device --json "$out/speed_lite.json" ;;
        speed_float32) $bench speed --denoiser ffdnet --precision float32 --sizes "$(sizes small)" --iterations "$(few)" --device $device --json "$out/speed_float32.json" ;;
        stacks) $bench speed --denoiser $net --stacks --precision $bits --sizes "" --device $device --json "$out/stacks.json" ;;
        large) $bench speed --denoiser ffdnet --sizes "$(sizes large)" --iterations "$(few)" --device $device --most-seconds 150 --json "$out/large.json" ;;
        quality) quality float32 ;;
        quality_half) quality half ;;
        profile) $python lab/research/gpu_day.py profile "$out/profile.json" --device $device ;;
        train) train ;;
        train_video_[1-4]) train_video "${1##*_}" ;;
        report) report ;;
        *) echo "unknown piece $1" >&2; return 2 ;;
    esac
}

tests() {
    # Warnings are no errors here: those of torch on a GPU are not known beforehand.
    $python -m pytest -q -m "gpu and $1" -W default -p no:cacheprovider tests/recon tests/optics tests/transport tests/nodes/reconstruct
    status=$?
    [ $status -eq 5 ] && status=0 # nothing was selected
    return $status
}

quality() {
    if [ -z "$data" ] || [ ! -d "$data/benchmark" ]; then
        echo "skipped: no published sets; --data names the folder that holds benchmark/"
        return 0
    fi
    $bench quality --data "$data/benchmark" --denoiser "$net" --iterations "$least" --set "precision=$1" --device $device --json "$out/quality_$1.json"
}

train() {
    if [ -z "$data" ] || [ ! -d "$data/train" ]; then
        echo "skipped: no photographs; --data names the folder that holds train/"
        return 0
    fi
    resume=
    [ -d "$out/training" ] && resume=--resume
    if [ -n "$rehearse" ]; then
        $python -m sci_stream train "$data/train" "$out/training" --steps 4 --validate-every 2 --batch 2 --patch 32 --held-out 1 --memory-mib 512 $resume
    else
        $python -m sci_stream train "$data/train" "$out/training" --variant ffdnet --minutes 4 --device $device $resume
    fi
}

# Each session takes eight minutes, so that its last checkpoint is written in time. The first two do not decide how long
# the run is; then their pace gives the number of steps, of which the last 35 % have falling rates.
train_video() {
    if [ -z "$data" ] || [ ! -d "$data/video_train/free" ]; then
        echo "skipped: no clips; --data names the folder that holds video_train/free/"
        return 0
    fi
    # Only what lets the weights be licensed freely; the other photographs are CC BY-SA.
    mkdir -p "$out/free_photographs"
    ln -sf "$(realpath "$data")"/train/clic_* "$out/free_photographs/"
    run=$out/training_video options=
    [ -n "$rehearse" ] && options="--batch 2 --patch 32 --clip-size 64 --pool 12 --noise-steps 4"
    [ -f "$run/checkpoint.pt" ] && options="$options --resume"
    case $rehearse$1 in
        yes*) ends="--steps $(($1 * 8)) --validate-every 100" ;;
        1 | 2) ends="--steps 1000000 --minutes 8 --validate-every 2000" ;;
        3) $python lab/research/gpu_day.py video_steps "$run" "$out/video_steps" &&
            ends="--steps $(cat "$out/video_steps") --minutes 8 --validate-every 2000" || return ;;
        4) ends="--steps $(cat "$out/video_steps") --minutes 8.3 --validate-every 2000" ;;
    esac
    $python -m sci_stream train "$out/free_photographs" "$run" --variant video --clips "$data/video_train/free" --device $device $options $ends
}

report() {
    if [ -n "$rehearse" ]; then
        $python lab/research/gpu_day.py report "$out" "$out/report.md"
    else
        mkdir -p lab/research/results
        $python lab/research/gpu_day.py report "$out" "lab/research/results/gpu-$(date -u +%Y-%m-%d).md"
    fi
}

few() { if [ -n "$rehearse" ]; then echo 4; else echo 8; fi; }

sizes() {
    case $rehearse$1 in
        main) echo 256x256x8,512x512x22,512x512x22:bayer ;;
        small) echo 256x256x8,512x512x22 ;;
        large) echo 1080x1920x24,3840x1644x48 ;;
        yesmain) echo 32x32x4,32x32x8,32x32x8:bayer ;;
        yessmall) echo 32x32x4 ;;
        yeslarge) echo 48x64x8 ;;
    esac
}

failed=0
for name in $pieces; do
    if [ "$name" != report ] && [ -f "$out/$name.done" ]; then
        echo "$name: done before"
        continue
    fi
    echo "$name …"
    began=$(date +%s)
    piece "$name" >"$out/$name.log" 2>&1 &
    process=$!
    # Ends the piece with all that it started. Short sleeps: a long one would outlive the script and hold what its caller
    # waits for.
    (
        left=$(($(limit "$name") * slowly))
        while [ $left -gt 0 ] && kill -0 $process; do sleep 1; left=$((left - 1)); done
        kill -0 $process && { pkill -INT -P $process; sleep 10; pkill -KILL -P $process; }
    ) >/dev/null 2>&1 &
    wait $process
    status=$?
    seconds=$(($(date +%s) - began))
    echo "$name $status $seconds" >>"$out/pieces.txt"
    if [ $status -eq 0 ]; then
        touch "$out/$name.done"
        echo "$name: $(tail -n 1 "$out/$name.log" | cut -c1-150) ($seconds s)"
    else
        failed=1
        echo "$name: failed with status $status after $seconds s, see $out/$name.log:"
        tail -n 5 "$out/$name.log" | sed 's/^/    /'
    fi
done
exit $failed
