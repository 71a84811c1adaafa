# shellcheck shell=bash
# What is in a folder, each as entry KIND PATH; or missing, or denied.
declare path
if [ ! -e "$path" ]; then
    say missing
elif [ -d "$path" ] && ! { [ -r "$path" ] && [ -x "$path" ]; }; then
    say denied
else
    find -L "$path" -mindepth 1 -maxdepth 1 -printf '3\0entry\0%y\0%p\0' >&3 2>/dev/null
fi
