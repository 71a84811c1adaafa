# shellcheck shell=bash
# Which site this is: site WORDS.
declare site

own_site "$site"
