"""No solution from the future: a history cut after the base commit, and a look for what is left of it.

Shell that needs git and POSIX tools alone. What may be reached in a cut repository are the objects of HEAD
and of tags that were there at the base commit; HEAD is the base commit, or one commit on top of it that has
the files of the image. Anything more counts: other branches, remotes, reflogs, stashes, notes, replacements,
worktrees, alternates, packs that are kept, loose objects that nothing refers to. So do other copies of the
repository, and bundles of it, wherever in the sandbox they lie: the look names them.
"""

import shlex

_GIT = """\
export GIT_NO_REPLACE_OBJECTS=1 GIT_OPTIONAL_LOCKS=0
g() {
    git -c safe.directory='*' -c core.fsmonitor=false -c core.hooksPath=/dev/null -c gc.auto=0 \\
        -c maintenance.auto=false -c core.quotePath=true "$@"
}
at_base() {
    when=$(g log -1 --format=%ct "$base")
    g for-each-ref --merged="$base" --format='%(creatordate:unix) %(refname)' refs/tags |
        while read -r made ref; do [ "$made" -gt "$when" ] || echo "$ref"; done
}
is_bundle() { head -n 1 "$1" | grep -q '^# v[0-9]* git bundle'; }
"""
"""`g` is git without what a repository may say; `at_base` prints the tags of the base commit's time;
`is_bundle` tells git's bundles from other files of that name."""

_CUT = """\
(
set -e
command -v git > /dev/null || exit 0
{git}
top=$(g rev-parse --show-toplevel 2> /dev/null) || exit 0
cd "$top"
head=$(g rev-parse -q --verify 'HEAD^{{commit}}') || exit 0
wanted={base}
base=$(g rev-parse -q --verify "$wanted^{{commit}}" 2> /dev/null) || base=$head
own=$(g rev-parse --absolute-git-dir)
common=$(cd "$(g rev-parse --git-common-dir)" && pwd)
if [ -n "$(find "$common/objects/pack" -name '*.promisor')" ] &&
    g rev-list --objects --missing=print "$head" "$base" | grep -q '^?'; then
    echo 'the history of a partial clone (git clone --filter) cannot be cut: make the image of a full clone'
    exit 1
fi
if [ "$(g rev-parse "$head^{{tree}}")" = "$(g rev-parse "$base^{{tree}}")" ]; then
    head=$base
elif [ "$head" != "$base" ]; then
    date="$(g log -1 --format=%ct "$base") +0000"
    head=$(GIT_AUTHOR_NAME=image GIT_AUTHOR_EMAIL=image@localhost GIT_AUTHOR_DATE="$date" \\
        GIT_COMMITTER_NAME=image GIT_COMMITTER_EMAIL=image@localhost GIT_COMMITTER_DATE="$date" \\
        g commit-tree -p "$base" -m 'Files of the image' "$head^{{tree}}")
fi
branch=$(g symbolic-ref -q HEAD) || branch=
kept=$(at_base)
g update-ref --no-deref HEAD "$head"
for remote in $(g remote); do g remote remove "$remote"; done
g for-each-ref --format='%(refname)' | while read -r ref; do
    case "
$kept
" in *"
$ref
"*) ;; *) printf 'option no-deref\\ndelete %s\\n' "$ref" ;; esac
done | g update-ref --stdin
if [ -n "$branch" ]; then
    g update-ref "$branch" "$head"
    g symbolic-ref HEAD "$branch"
fi
g diff-index --cached --quiet "$head" || g reset -q
for place in "$own" "$common"; do (
    cd "$place"
    rm -rf logs lost-found rr-cache rebase-merge rebase-apply sequencer info/grafts shallow.lock \\
        objects/info/commit-graph objects/info/commit-graphs
    rm -f ./*_HEAD ./*MSG BISECT_* AUTO_MERGE objects/pack/multi-pack-index* objects/pack/*.keep \\
        objects/pack/*.promisor
    find . -type f -name '*.bundle' | while read -r file; do
        if is_bundle "$file"; then rm -f "$file"; fi
    done
); done
rm -rf "$common/worktrees"
count() {{ g cat-file --batch-all-objects --batch-check='%(objectname)' | wc -l; }}
wanted=$(g rev-list --objects --all HEAD | wc -l)
if [ "$(count)" -ne "$wanted" ] || [ -e "$common/objects/info/alternates" ]; then
    g repack -a -d -q --window=0
    rm -f "$common/objects/info/alternates" "$common/objects/info/http-alternates"
    g prune --expire=now
fi
[ "$(count)" -eq "$wanted" ] || {{ echo 'the history of this repository cannot be cut'; exit 1; }}
)"""

_LOOK = """\
over() {{ echo {over}; exit 0; }}
if ! command -v git > /dev/null; then
    [ ! -e .git ] || echo 'git is missing, so the history cannot be read'
    over
fi
{git}
top=$(g rev-parse --show-toplevel 2> /dev/null) || over
cd "$top"
head=$(g rev-parse -q --verify 'HEAD^{{commit}}') || over
wanted={base}
parents=$(g rev-list --parents -n 1 "$head")
base=$(g rev-parse -q --verify "$wanted^{{commit}}" 2> /dev/null) || {{
    base=$head
    [ "$parents" = "$head" ] ||
        echo "the base commit $wanted is not in the repository, so what of its history is later is unknown"
}}
[ "$head" = "$base" ] || [ "$parents" = "$head $base" ] ||
    echo "HEAD is $head, and not the base commit $base or one on top of it"
branch=$(g symbolic-ref -q HEAD) || branch=
kept=$(at_base)
g for-each-ref --format='%(refname)' | while read -r ref; do
    case "
$branch
$kept
" in *"
$ref
"*) ;; *) echo "the reference $ref" ;; esac
done
scratch=$(mktemp -d)
g cat-file --batch-all-objects --batch-check='%(objectname)' > "$scratch/all" ||
    echo 'its objects cannot be listed'
g rev-list --objects "$head" $kept | cut -d ' ' -f 1 | sort -u > "$scratch/reached"
for ref in $kept; do g rev-parse "$ref"; done | sort -u - "$scratch/reached" > "$scratch/wanted"
unwanted() {{ sort "$1" "$scratch/wanted" "$scratch/wanted" | uniq -u; }}
unwanted "$scratch/all" > "$scratch/more"
if [ -s "$scratch/more" ]; then
    more=$(wc -l < "$scratch/more")
    echo "$more objects that the base commit does not have, as $(head -1 "$scratch/more")"
fi
common=$(cd "$(g rev-parse --git-common-dir)" && pwd)
[ ! -s "$common/objects/info/alternates" ] || echo 'objects of another repository (alternates)'
find "$common/logs" -type f -exec cut -d ' ' -f 2 {{}} + 2> /dev/null | sort -u > "$scratch/logged"
[ -z "$(unwanted "$scratch/logged")" ] || echo 'a reflog that tells of later commits'
[ "$(echo '# v2 git bundle' | head -c 4)" = '# v2' ] ||
    echo 'this image has a head without -c, so bundles cannot be found'
mkdir "$scratch/found"
export scratch
limit=
if timeout 5 true 2> /dev/null; then limit='timeout {seconds}'; fi
$limit find {under} \\( -path /proc -o -path /sys -o -path /dev \\) -prune -o \\
    \\( -type d -o -type l \\) -name objects -exec sh -c '
        for found do
            [ ! -d "$found" ] || ln -s "$found" "$(mktemp -d "$scratch/found/XXXXXX")/it"
        done' sh {{}} + -o \\
    -type f \\( -name '*.bundle' -o \\
        ! -path '/usr/lib/*' ! -path '/usr/share/*' ! -path '/usr/include/*' \\) -exec sh -c '
        is_bundle() {{ head -c 20 "$@" | grep -q "^# v[0-9]* git bundle"; }}
        is_bundle "$@" || exit 0
        for found do
            ! is_bundle "$found" || ln -s "$found" "$(mktemp -d "$scratch/found/XXXXXX")/it"
        done' sh {{}} + 2> /dev/null
[ $? -le 1 ] || echo 'the search for other copies of the repository did not end in {seconds} s'
for link in "$scratch"/found/*/it; do
    [ -e "$link" ] && ! [ "$link" -ef "$common/objects" ] || continue
    found=$(readlink "$link")
    other=$scratch/other.git
    rm -rf "$other"
    g init -q --bare "$other"
    if [ -d "$link" ]; then
        echo "$link" > "$other/objects/info/alternates"
    elif sed '/^$/q' "$link" | grep -q '^-'; then
        echo "a bundle that continues a history in $found: make an image without it"
        continue
    elif ! g --git-dir="$other" bundle unbundle "$link" > /dev/null 2>&1; then
        echo "a bundle that cannot be read in $found: make an image without it"
        continue
    fi
    for commit in "$base" {commits}; do
        if g --git-dir="$other" cat-file -e "$commit^{{commit}}" 2> /dev/null; then
            echo "another copy of the repository in $found: make an image without it"
            break
        fi
    done
done
rm -r "$scratch"
over
"""

OVER = "over"
"""The last line of a search that was completed."""

SEARCH_SECONDS = 600
"""Timeout of the search of a whole sandbox: 100,000 files take two or three, and one read each from a
disk."""


def cut(base_commit: str) -> str:
    """Shell, run in a repository: nothing younger than the base commit can be reached afterwards. It changes
    no file of the working tree, does nothing where there is no repository, and fails where it cannot."""
    return _CUT.format(git=_GIT, base=shlex.quote(base_commit or "HEAD"))


def look(base_commit: str, other_commits: tuple[str, ...] = (), under: str = "/") -> str:
    """Shell, run in a repository: prints a line for each thing that lets the future be seen, then OVER. A
    copy of the repository `under` a directory is recognized by the base commit, or by one of
    `other_commits` where its history is shallow."""
    named = [commit for commit in (base_commit, *other_commits) if commit and commit != "HEAD"]
    return _LOOK.format(
        git=_GIT,
        base=shlex.quote(base_commit or "HEAD"),
        over=OVER,
        seconds=SEARCH_SECONDS,
        under=shlex.quote(under),
        commits=" ".join(shlex.quote(commit) for commit in named),
    )
