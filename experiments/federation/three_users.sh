#!/bin/sh
# Runs a federation of three sites on one machine, each as a system user of its own.
#
#   three_users.sh FOLDER RUN.toml UID...
#
# Run it as root. FOLDER is new and gets one folder per site; the tables berlin.csv, paris.csv and
# rome.csv are in the current directory. Three UIDs follow, for example 62001 62002 62003. Root
# plays the part of OpenSSH: it may open the sites' sockets, and starts the run.
set -eu
folder=$1 run=$2
shift 2
privfed=${PRIVFED:-privfed}
agents=
trap 'kill $agents 2>/dev/null || true' EXIT

drop="--clear-groups --no-new-privs"
as() {  # as UID COMMAND...: runs a command as a site's user, who has no other privilege
    id=$1
    shift
    setpriv --reuid="$id" --regid="$id" $drop env HOME="$home" "$@"
}

mkdir -m 755 "$folder"
"$privfed" site init "$folder/office" --name coordinator > "$folder/coordinator.key"
"$privfed" federation new "$folder/federation.toml" --name stays \
    --coordinator "$(cut -d ' ' -f 3 "$folder/coordinator.key")"

for site in berlin paris rome; do  # a user, a folder, a key and a table for each site
    home=$folder/$site
    install -d -m 700 -o "$1" -g "$1" "$home"
    key=$(as "$1" "$privfed" site init "$home/site" --name "$site" | cut -d ' ' -f 3)
    "$privfed" federation add "$folder/federation.toml" --site "$site" "$key"
    install -m 600 -o "$1" -g "$1" "$site.csv" "$home/stays.csv"
    shift
    set -- "$@" "$(stat -c %u "$home")"
done

sockets=
for site in berlin paris rome; do
    home=$folder/$site
    install -m 600 -o "$1" -g "$1" "$folder/federation.toml" "$home/site/federation.toml"
    as "$1" tee "$home/site/data.toml" > /dev/null <<END
format = 1
population = "stays"
path = "../stays.csv"
client = "patient"
clients = 500
rows = 5
reading = 15.0
END
    as "$1" "$privfed" site check "$home/site" "$run" > "$folder/$site.check"
    setpriv --reuid="$1" --regid="$1" $drop env HOME="$home" \
        "$privfed" site serve "$home/site" > "$folder/$site.events" 2>&1 &
    agents="$agents $!"
    sockets="$sockets --site $site $home/site/socket"
    shift
done
for site in berlin paris rome; do
    until "$privfed" site status "$folder/$site/site" > /dev/null 2>&1; do sleep 0.5; done
done

# shellcheck disable=SC2086  # one word for each argument
"$privfed" federation run "$run" --federation "$folder/federation.toml" \
    --key "$folder/office/key" --out "$folder/run" $sockets
"$privfed" audit "$folder/run"
