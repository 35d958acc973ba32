#!/usr/bin/env python3
"""Checks the shape of the code against scripts/graph.txt: which crate may use which, circles of modules, sizes, words.

    scripts/graph.py            compare; exit 1 with what differs
    scripts/graph.py --write    write graph.txt anew: its diff shows what got better or worse
    scripts/graph.py --lines    shipped lines of each crate by language
    scripts/graph.py --why      what makes each circle

Shipped lines have no blanks, comments or tests. A limit in graph.txt that is higher than needed is an error too: once
better, it stays better.
"""
import collections, glob, os, re, sys, tomllib

LIST = "scripts/graph.txt"
PAGE = "ARCHITECTURE.md"
ARROWS = "<!-- scripts/graph.py --write draws these arrows. -->\n```text\n"
LARGEST = 6000  # shipped lines of one language in a crate
COLUMNS = 110
WORDS = r"\b(door|gate|embryo|glance|homeless)\b"
PURE = ("proto", "policy", "http")  # no I/O
IO = r"\b(std::(net::(Tcp|Udp)\w+|fs|process|os::(fd|unix))|rustix|libc)\b"
ENGINES = {"relay", "https"}  # named together in `truepeer` only


def without_comments(source):
    """Blanks comments and the contents of string literals. Lines are kept."""
    # A raw string, a string, a character, a comment. Nested block comments are not used.
    token = r'r(#*)".*?"\1|b?"(?:\\.|[^"\\])*"|\'(?:\\.[^\']*|[^\'\\])\'|//[^\n]*|/\*.*?\*/'
    def blank(found):
        text = found.group()
        if text.startswith("/"):
            return "\n" * text.count("\n")
        return '""' + "\n" * text.count("\n") if '"' in text else "' '"
    return re.sub(token, blank, source, flags=re.S)


def without_tests(source):
    """Removes items under #[cfg(test)]: up to `;`, or to the brace that closes."""
    while found := re.search(r"#\[cfg\((?:all\()?test\b[^\]]*\]", source):
        end, depth = found.end(), 0
        while end < len(source):
            depth += {"{": 1, "}": -1}.get(source[end], 0)
            end += 1
            if depth == 0 and source[end - 1] in ";}":
                break
        source = source[: found.start()] + source[end:]
    return source


def is_test(path):
    return re.search(r"(^|/)tests?(/|\.rs$)|_tests?\.rs$", path.split("/src/", 1)[-1]) is not None


def rust_files(crate):
    """Module path → source, of what ships."""
    files = {}
    for path in sorted(glob.glob(f"crates/{crate}/src/**/*.rs", recursive=True)):
        if is_test(path):
            continue
        parts = path.split("/src/", 1)[1][:-3].split("/")
        if parts[-1] in ("mod", "lib", "main"):
            parts.pop()
        source = without_tests(without_comments(open(path).read()))
        files[tuple(parts)] = files.get(tuple(parts), "") + source
    return files


def use_paths(tree, prefix=()):
    """The paths in `a::{b, c::d}`."""
    tree = tree.strip()
    head, brace, rest = tree.partition("{")
    names = tuple(name for name in re.sub(r"\s+as\s+\w+", "", head).replace(" ", "").split("::") if name)
    if not brace:
        yield prefix + names
        return
    depth, start = 0, 0
    body = rest[: rest.rindex("}")]
    for at, char in enumerate(body + ","):
        depth += {"{": 1, "}": -1}.get(char, 0)
        if char == "," and depth == 0:
            if body[start:at].strip():
                yield from use_paths(body[start:at], prefix + names)
            start = at + 1


def references(module, source):
    """Absolute paths within the crate that a module names, in `use` and elsewhere."""
    uses = [path for tree in re.findall(r"\buse\s+([^;]+);", source) for path in use_paths(tree)]
    rest = re.sub(r"\buse\s+[^;]+;", "", source)
    paths = [tuple(path.split("::")) for path in re.findall(r"\b(?:crate|super|self)(?:::\w+)+", rest)]
    for path in uses + paths:
        if path[:1] == ("crate",):
            yield path[1:]
        elif path[:1] in (("super",), ("self",)):
            base = module
            while path[:1] in (("super",), ("self",)):
                base = base[:-1] if path[0] == "super" else base
                path = path[1:]
            yield base + path


def reexports(files):
    """Where a name leads that a module takes from its children by `use`."""
    found = {}
    for module, source in files.items():
        for tree in re.findall(r"\buse\s+([^;]+);", source):
            for path in use_paths(tree):
                path = path[1:] if path[:1] == ("self",) else path
                if path and module + path[:1] in files and len(path) > 1:
                    found[module + path[-1:]] = module + path
    return found


def arrows_between_neighbours(crate):
    """From a module to one in the same folder that it, or a module in it, names: to what, and where."""
    files = rust_files(crate)
    leads = reexports(files)
    arrows = collections.defaultdict(lambda: collections.defaultdict(set))
    for module, source in files.items():
        for path in references(module, source):
            named = path
            for _ in range(5):
                short = next((path[:n] for n in range(1, len(path) + 1) if path[:n] in leads), None)
                if short is None or leads[short] == short:
                    break
                path = leads[short] + path[len(short):]
            while path and path not in files:
                path = path[:-1]
            common = 0
            while common < min(len(path), len(module)) and path[common] == module[common]:
                common += 1
            if common < len(path) and common < len(module):
                arrows[module[: common + 1]][path[: common + 1]].add((module, named))
    return arrows


def circles(crate):
    """Sets of modules in one folder that need each other."""
    return [sorted("::".join(module) for module in circle) for circle in components(arrows_between_neighbours(crate))]


def print_circles(crate):
    arrows = arrows_between_neighbours(crate)
    for circle in components(arrows):
        print(f"circle {crate}: {' '.join(sorted('::'.join(module) for module in circle))}")
        for start in sorted(circle):
            for end in sorted(circle & set(arrows[start])):
                print(f"    {'::'.join(start)} uses {'::'.join(end)}")
                for module, named in sorted(arrows[start][end]):
                    print(f"        {'::'.join(module)}: {'::'.join(named)}")


def components(arrows):
    """Strongly connected components of two or more nodes."""
    def reach(start):
        seen, left = set(), [start]
        while left:
            for node in arrows.get(left.pop(), ()):
                if node not in seen:
                    seen.add(node)
                    left.append(node)
        return seen
    reached = {node: reach(node) for node in list(arrows)}
    found = {frozenset(other for other in reached[node] if node in reached.get(other, ())) for node in reached}
    return sorted((circle for circle in found if len(circle) > 1), key=sorted)


def shipped_lines(crate):
    count = collections.Counter()
    for source in rust_files(crate).values():
        count["Rust"] += sum(1 for line in source.splitlines() if line.strip())
    for path in glob.glob(f"crates/{crate}/**/*.[ch]", recursive=True):
        if not is_test(path) and "/tests/" not in path:
            source = without_comments(open(path).read())
            count["C"] += sum(1 for line in source.splitlines() if line.strip())
    return count


def dependencies(crate):
    manifest = tomllib.load(open(f"crates/{crate}/Cargo.toml", "rb"))
    tables = [manifest.get("dependencies", {})]
    tables += [target.get("dependencies", {}) for target in manifest.get("target", {}).values()]
    names = {name.removeprefix("truepeer-") for table in tables for name in table if name.startswith("truepeer")}
    return sorted(names)


def facts():
    """Lines of graph.txt: a kind, a subject, and what was found."""
    crates = sorted(os.path.dirname(path).split("/")[-1] for path in glob.glob("crates/*/Cargo.toml"))
    shipping = [crate for crate in crates if crate != "testbed"]
    for crate in crates:
        uses = dependencies(crate)
        yield f"uses {crate}: {' '.join(uses)}".rstrip()
        if crate != "truepeer" and ENGINES <= set(uses):
            yield f"both-engines {crate}"
    for crate in shipping:
        for circle in circles(crate):
            yield f"circle {crate}: {' '.join(circle)}"
        for language, lines in sorted(shipped_lines(crate).items()):
            if lines > LARGEST:
                yield f"too-large {crate} {language}: {-(-lines // 500) * 500}"
    for crate in PURE:
        for module, source in rust_files(crate).items():
            if re.search(IO, source):
                yield f"io {crate}: {'::'.join(module) or 'lib'}"
    for path in sorted(glob.glob("crates/bpf/c/lib/*")):
        for name in re.findall(r'#include "(?!lib/)([^"]+)"', open(path).read()):
            yield f"c-library {os.path.basename(path)}: {name}"
    for module, source in rust_files("sys").items():
        for name in re.findall(r"^\s*(?:pub(?:\(\w+\))? )?static (?:mut )?(\w+)", source, flags=re.M):
            yield f"static sys: {'::'.join(module)}::{name}"
    long, private = collections.Counter(), collections.Counter()
    for path in glob.glob("crates/*/**/*", recursive=True):
        if path.endswith((".rs", ".c", ".h")):
            lines = open(path).read().splitlines()
            crate = path.split("/")[1]
            long[crate] += sum(1 for line in lines if len(line) > COLUMNS)
            private[crate] += sum(1 for line in lines if re.search(WORDS, line))
    yield from (f"long-lines {crate}: {count}" for crate, count in sorted(long.items()) if count)
    yield from (f"private-words {crate}: {count}" for crate, count in sorted(private.items()) if count)


def drawn_arrows():
    """The block of ARCHITECTURE.md: who uses whom, from the crates that use none upwards."""
    left = {crate: set(dependencies(crate)) for crate in (p.split("/")[1] for p in glob.glob("crates/*/Cargo.toml"))}
    lines, drawn = [], set()
    while left:
        floor = sorted(crate for crate, uses in left.items() if uses <= drawn)
        for crate in floor:
            lines.append(f"{crate:9} → {' '.join(sorted(left.pop(crate)))}" if left[crate] else crate)
            left.pop(crate, None)
        drawn |= set(floor)
    return "".join(line + "\n" for line in lines)


def page_with_arrows():
    page = open(PAGE).read()
    begin = page.index(ARROWS) + len(ARROWS)
    return page, page[:begin] + drawn_arrows() + page[page.index("```", begin):]


def main():
    os.chdir(os.path.join(os.path.dirname(__file__), ".."))
    if "--lines" in sys.argv:
        total = collections.Counter()
        for crate in sorted(p.split("/")[1] for p in glob.glob("crates/*/Cargo.toml")):
            lines = shipped_lines(crate)
            total += lines if crate != "testbed" else collections.Counter()
            print(f"{crate:12}" + "".join(f"{lines[language]:8} {language}" for language in ("Rust", "C")))
        print(f"{'shipped':12}" + "".join(f"{total[language]:8} {language}" for language in ("Rust", "C")))
        return
    if "--why" in sys.argv:
        for path in sorted(glob.glob("crates/*/Cargo.toml")):
            print_circles(path.split("/")[1])
        return
    found = list(facts())
    if "--write" in sys.argv:
        page = page_with_arrows()[1]
        open(LIST, "w").write("\n".join(found) + "\n")
        open(PAGE, "w").write(page)
        return
    listed = open(LIST).read().splitlines()
    for line in sorted(set(found) - set(listed)):
        print(f"new, or more than {LIST} allows: {line}")
    for line in sorted(set(listed) - set(found)):
        print(f"no longer so: {line}")
    page, right = page_with_arrows()
    if page != right:
        print(f"{PAGE} draws other arrows than Cargo.toml has")
    if set(found) != set(listed) or page != right:
        sys.exit(f"what must never be: a new circle, a crate of more than {LARGEST} lines of one language, I/O in "
                 f"{', '.join(PURE)}, a static in sys, both engines named outside truepeer, "
                 f"a header of c/lib that includes one of another folder. "
                 f"If {LIST} should change: scripts/graph.py --write, and say why in the commit")
    print(f"{len(found)} facts as in {LIST}")


main()
