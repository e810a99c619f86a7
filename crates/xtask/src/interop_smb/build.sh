# A repository of C sources, cloned onto the share and built there. What make has to compile again after a change,
# and what the program must print, is known here without asking make.
set -e
UNITS=36
fail() {
    echo "$*"
    exit 1
}

export HOME=/tmp
git config --global user.name a
git config --global user.email a@b
git config --global safe.directory '*'
fileplay clock /m --set

# Each unit calls the one before it; every third one includes kind.h. Their tables make half a megabyte of library.
mkdir -p /tmp/origin/include /tmp/origin/src
cd /tmp/origin
echo '#define KIND 5' >include/kind.h
echo '#define unit0(value) (value)' >include/unit0.h
unit=1
while [ $unit -le $UNITS ]; do
    before=$((unit - 1))
    echo "int unit$unit(int value);" >include/unit$unit.h
    if [ $((unit % 3)) = 0 ]; then kind='#include "kind.h"'; else kind='#define KIND 0'; fi
    cat >src/unit$unit.c <<END
#include "unit$unit.h"
#include "unit$before.h"
$kind
static unsigned char table[16384] = { [16383] = $unit };
int unit$unit(int value)
{
    return (unit$before(value) * 31 + table[16383] + KIND) % 65521;
}
END
    unit=$((unit + 1))
done
cat >src/main.c <<END
#include <stdio.h>
#include "unit$UNITS.h"
int main(void)
{
    printf("%d of %d\n", unit$UNITS(1), $UNITS);
    return 0;
}
END
cat >Makefile <<'END'
OBJECTS = $(patsubst src/%.c,out/%.o,$(filter-out src/main.c,$(wildcard src/*.c)))
out/report: out/main.o out/libunits.a
	@echo LINK $@
	@tcc -o $@ $^
out/libunits.a: $(OBJECTS)
	@echo AR $@
	@rm -f $@
	@tcc -ar rcs $@ $^
out/%.o: src/%.c | out
	@echo CC $<
	@tcc -Iinclude -MD -MF out/$*.d -c -o $@ $<
out:
	@mkdir $@
clean:
	rm -r out
-include $(wildcard out/*.d)
END
git init -q
git add -A
git commit -q -m first

# What the program prints where KIND is $1.
printed() {
    value=1
    unit=1
    while [ $unit -le $UNITS ]; do
        value=$(((value * 31 + unit + (unit % 3 == 0 ? $1 : 0)) % 65521))
        unit=$((unit + 1))
    done
    echo "$value of $UNITS"
}
# Builds; that compiles $2 and nothing else. Then the program prints what it must where KIND is $1.
build() {
    make -j4 >/tmp/said 2>&1 || fail "make: $(cat /tmp/said)"
    compiled=$(sed -n 's/^CC //p' /tmp/said | sort | xargs)
    [ "$compiled" = "$(echo "$2" | sort | xargs)" ] || fail "not $2 was compiled but: $(cat /tmp/said)"
    [ "$(grep -c -e '^AR ' -e '^LINK ' /tmp/said)" = 2 ] || fail "no new program: $(cat /tmp/said)"
    is_built $1
}
# Nothing is left to do, and the program is that of KIND $1.
is_built() {
    make -q || fail "make would build again: $(make -n)"
    [ "$(out/report)" = "$(printed $1)" ] || fail "the program prints $(out/report), not $(printed $1)"
}
look_again() {
    cd /
    remount
    cd /m/project
}

git clone -q /tmp/origin /m/project
cd /m/project
with_kind=$(grep -l 'include "kind.h"' src/*.c)
build 5 "$(ls src/*.c)"
[ "$(git status --porcelain)" = '?? out/' ] || fail "git status: $(git status --porcelain)"
sed -i 's/KIND 5/KIND 7/' include/kind.h
build 7 "$with_kind"
git commit -q -a -m second
# By what the server alone says of times, too.
look_again
is_built 7
touch src/unit7.c
build 7 src/unit7.c
git checkout -q HEAD~1
look_again
build 5 "$with_kind"
git checkout -q -
make -s clean
look_again
[ -z "$(git status --porcelain)" ] || fail "git status: $(git status --porcelain)"
git fsck --full --strict
find . -name .git -prune -o -type f -exec stat -c '%Y %s %n' {} + | sort >/m/times
