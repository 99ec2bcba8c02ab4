package jq

import (
	"context"
	"encoding/json"
	"errors"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime"
	"runtime/metrics"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/itchyny/gojq"

	"github.com/agentoutbox/drainer/drainertest"
	"github.com/agentoutbox/drainer/integration/fault"
)

// bombs are short expressions that need very much memory, or very much time in one step. Their input is {"s": "x",
// "n": 400000000, "list": [1, …, 1000], "text": 100 kB, "deep": a list 5000 deep, "long": the longest number,
// "numbers" and "others": lists of 15,000 numbers}.
var bombs = []string{
	`.s * .n`, `.n * .s`, `"x" * 1e9`, `[range(1e9)]`, `[limit(1e9; repeat(1))] | join("x")`,
	`reduce range(60) as $i ("x"; . + .)`, `reduce range(60) as $i ([1]; . + .)`, `reduce range(60) as $i ("x"; "\(.)\(.)")`,
	`last(foreach range(60) as $i ("x"; . + .))`, `.s |= reduce range(60) as $i (.; . + .)`, `.s += ("y" * .n)`, `.s *= .n`,
	`reduce range(60) as $i (0; [., .]) | tojson`, `reduce range(60) as $i (0; [., .]) | tostring`, `reduce range(60) as $i (0; [., .]) | flatten`,
	`reduce range(60) as $i (0; [., .]) | . == .`, `reduce range(60) as $i (0; [., .]) | "\(.)"`, `reduce range(60) as $i (0; [., .]) | @html`,
	`reduce range(60) as $i (0; [., .]) | @sh "\(.)"`, `reduce range(60) as $i (0; [., .]) | error`, `reduce range(60) as $i (0; [., .]) | try error(.) catch .`,
	`reduce range(60) as $i (0; [., .]) | sort`, `reduce range(60) as $i (0; [., .]) | contains(.)`, `reduce range(60) as $i (0; [., .]) | {a: .} | [.] | unique`,
	`reduce range(60) as $i ({}; {a: ., b: .}) | . * .`, `reduce range(60) as $i (0; [., .]) | halt_error`, `reduce range(60) as $i (0; [., .]) | [paths]`,
	`reduce range(60) as $i (0; [., .]) | del(.[0])`, `reduce range(60) as $i (0; [., .]) | walk(.)`, `reduce range(60) as $i (0; [., .]) | [..]`,
	`.list | tojson | [limit(1000000; repeat(. + "x"))] | length`, `[.text as $t | range(1000000) | $t + "x"] | add`, `[.text as $t | range(100000) | $t] | add`,
	`.text as $t | [range(100000) | ""] | join($t)`, `[range(100000)] | [., (range(20000) | [])] | transpose`, `null | .[500000000] = 1`, `null | .[500000000] |= 1`,
	`[] | .[500000000] += 1`, `null | setpath([400000000]; 1)`, `null | setpath([range(100) | 0] + [400000000]; 1)`, `(.x[range(1000)] | .[500000]) = 1`,
	`.text | [match(""; "g")]`, `.text | gsub(""; "xxxxxxxxxxxxxxxxxxxx")`, `.text * 50 | gsub("x"; "y")`, `[range(1000000) as $i | "x" | test("x{1000}" * 10 + "\($i)")] | length`,
	`"a" | test("(a{1000}b{1000})" * 10000)`, `[range(100000) as $i | "x" | test("\($i)")] | length`, `[range(1000) as $i | $i | strftime("%1000d" * 10000)] | length`,
	`.text * 10 | test("(x?){1000}y")`, `.text * 10 | [match("(x?x?x?x?x?){200}y"; "g")]`, `[range(1000) | "x" * 20000 | test("(x?){1000}y")]`,
	`.text * 100 | explode`, `.text * 100 | split("")`, `.text * 100 / ""`, `.text * 60 | [match("x"; "g").offset]`, `[.text as $t | range(10000) | $t | ascii_upcase] | length`,
	`[.text as $t | range(10000) | $t | @base64] | length`, `[.text as $t | range(10000) | [$t] | tojson] | length`, `[.text as $t | range(10000) | $t | explode | implode] | length`,
	`[.text as $t | range(10000) | $t | @uri] | length`, `[.text as $t | range(10000) | [$t] | @csv] | length`, `"\u0000" * 5000000 | tojson | tojson`,
	`reduce range(40) as $i (10; . * .)`, `"9" * 8000000 | tonumber`, `[("9" * 90000 | tonumber) as $n | range(10000) | -$n] | length`, `[("9" * 90000 | tonumber) as $n | range(10000) | $n + .] | length`,
	`[("9" * 90000 | tonumber) as $n | range($n; $n + 10000)] | length`, `[("9" * 90000 | tonumber) as $n | range(10000) | $n | length] | length`,
	`def f: 1 + f; f`, `def f: f, f; f`, `def f: ., f; [f]`, `def f(g): f(g | g); f(.)`, `[recurse]| [recurse(.[]?; true)]`, `def f: .list[] as $x | f; f`, `.list as $l | def f: $l[], f; [f]`,
	`.list as $l | def f: $l[] | f; f`, `[range(100000) | {a: 1, b: ., c: 3, d: 4}]`, `[range(1000000) | gmtime]`, `[.list | combinations(3)?]`, `[[range(100)], [range(100)], [range(100)], [range(100)]] | [combinations]`,
	`[range(300000)] as $a | $a - $a`, `[range(300000)] as $a | $a | indices($a[1:])`, `[range(100000) | 1] | index([range(50000) | 1] + [2])`, `.text * 80 | indices("x" * 4000000 + "y")`, `.list as $l | [range(100000) | $l | sort] | length`,
	`.list as $l | [range(100000) | $l | map(.)] | length`, `.list as $l | [range(100000) | $l | to_entries] | length`, `.list as $l | [range(100000) | $l | keys] | length`,
	`.list as $l | [range(100000) | $l | reverse] | length`, `.list as $l | [range(100000) | $l | .[0] = 1] | length`, `.list as $l | [range(100000) | $l | map_values(1)] | length`,
	`.list as $l | [range(100000) | $l | del(.[0])] | length`, `.list as $l | [range(100000) | $l | group_by(.)] | length`, `.deep | [paths] | length`, `.deep | [.. |= empty]`, `.deep | .. |= .`, `.deep | [tostream]`,
	`.text * 10 | ["[\(.)]"] | .[0] | gsub("x"; "1,") | .[:-2] + "]" | fromjson`, `"[" + ("[]," * 2000000) + "[]]" | fromjson`, `try ("x" * 1e9) catch 1 | def f: f; f`, `("x" * 1e8)? // "caught"`,
	`.numbers - .others`, `.numbers as $n | .others | contains($n)`, `.numbers - [range(12000)]`, `.numbers | indices(.[1:])`, `[.long, .numbers[]] - .others`,
	`[limit(1000; repeat(.long))] - .others`, `[.long as $n | range(1000000) | $n | floor] | length`, `[.long as $n | range(1000000) | select(. < $n)] | length`, `[.long as $n | range(1000000) | pow(2; $n)] | length`,
	`[.long as $n | range(1000000) | [1] | .[$n]] | length`, `"9" * 1001 | fromjson`, `"[\("9" * 1000000)]" | fromjson`, `[.long as $n | range(1000) | $n] | [., .] | flatten | sort | length | [range(1000000)]`,
	`"x" | test("\\pL" * 30000)`, `"x" | test("[^\\pL]" * 30000)`, `"x" | test("\\PN" * 30000; "i")`,
	`def f: try ("x" * 1e8) catch f; f`, `[limit(1000000; repeat("x" * 100000))?]`, `[range(1e6)] | map(tostring) | INDEX(.)`, `reduce range(100000) as $i ({}; .["k\($i)"] = $i)`, `@json "\([range(1e7)])"`,
}

// A short expression can demand gigabytes. The process may grow only by the limit of one evaluation, and no
// expression may take long.
func TestNoExpressionBuildsMoreThanItMay(t *testing.T) {
	const most = 128 << 20
	fault.Injected(t, 72, len(bombs))
	text, list := strings.Repeat("x", 100_000), make([]any, 1000)
	for i := range list {
		list[i] = i
	}
	for _, source := range bombs {
		deep := any(json.Number("1"))
		for range 5000 {
			deep = []any{deep}
		}
		input := map[string]any{
			"s": "x", "n": json.Number("400000000"), "list": list, "text": text, "deep": deep,
			"long": json.Number(strings.Repeat("9", maxDigits)), "numbers": numbers(1), "others": numbers(2),
		}
		expression, err := Compile(source)
		if err != nil {
			t.Errorf("%s: %v", source, err)
			continue
		}
		var grew uint64
		var took time.Duration
		// An evaluation needs the same memory each time. The garbage that a slow collector leaves is not the same.
		for tries := 0; tries == 0 || grew > most && tries < 3; tries++ {
			grown := watchHeap(t)
			before := processorTime(t)
			_, err = expression.Eval(t.Context(), input)
			grew, took = grown(), processorTime(t)-before
		}
		// The last error is for a slow machine, or for the race detector.
		if !errors.Is(err, ErrBuildsTooMuch) && !errors.Is(err, ErrTooManySteps) && !errors.Is(err, ErrTooLarge) && !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%.80s: got %.200v", source, err)
		}
		if grew > most || took > 10*time.Second {
			t.Errorf("%.80s: the heap grew by %d MiB in %s", source, grew>>20, took)
		} else if testing.Verbose() {
			t.Logf("%4d MiB %8s  %.60s  %v", grew>>20, took.Round(time.Millisecond), source, err)
		}
	}
}

// processorTime excludes the time that other processes take of the machine.
func processorTime(t *testing.T) time.Duration {
	t.Helper()
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		t.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// numbers returns 15,000 odd or even numbers, as their texts.
func numbers(from int) (list []any) {
	for n := range 15_000 {
		list = append(list, json.Number(strconv.Itoa(2*n+from)))
	}
	return list
}

// watchHeap measures the heap until the returned function is called, which returns the largest growth.
func watchHeap(t *testing.T) func() uint64 {
	t.Helper()
	runtime.GC()
	heap := func() uint64 {
		sample := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
		metrics.Read(sample)
		return sample[0].Value.Uint64()
	}
	before, most := heap(), uint64(0)
	stop := make(chan struct{})
	var looking sync.WaitGroup
	looking.Go(func() {
		for {
			most = max(most, heap())
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
			}
		}
	})
	return func() uint64 {
		close(stop)
		looking.Wait()
		return max(most, heap()) - before
	}
}

// ordinary expressions have the same result with a budget as without.
var ordinary = []string{
	`.`, `.a`, `.a.b`, `.list[0]`, `.list[-1]`, `.list[1:3]`, `.text[1:3]`, `.list[]`, `.a[]`, `.none[]?`, `.a["b"]`, `.["a"]`, `."a"`, `.a."b"`, `."\("a")"`, `.list[.list[0]]`, `.a?.b?`, `.list[]?`,
	`[.list[] | . * 2]`, `{a: .a.b, (.text): 1, "x\(.text)": 2, "text"}`, `{$__loc__}`, `{text, list}`, `.list | map(. + 1)`, `.list | add`, `.list | length`, `.text | length`, `.a | keys`, `.list | join(",")`,
	`"id \(.id) and \(.text) \(.list) \(null)"`, `@base64 "x\(.text)"`, `.text | @base64`, `.text | @base64 | @base64d`, `@uri "\(.text)&\(.list)"`, `.list | @csv`, `.list | @tsv`, `.list | @sh`, `.text | @html`, `. | @json`, `. | @text`,
	`.id + 1`, `.id - 1`, `.id * 2`, `.id / 7`, `.id % 7`, `-.id`, `.amount * 100`, `.amount + .amount`, `-(.amount)`, `.list + [1]`, `.list - [1, 2]`, `.a + {c: 1}`, `.a * {b: {d: 1}}`, `.text * 3`, `3 * .text`, `.text * 0`, `.text * -1`, `.text / "l"`,
	`.text + 1`, `.a - 1`, `[] - {}`, `{} * 1`, `1 / 0`, `1 % 0`, `.none + 1`, `null + null`, `.list == [1, 2, 3]`, `.a != .a`, `.text < .id`, `.list > .a`, `[.list, .a] | sort`, `.id == 12345678901234567890`,
	`.list | sort_by(-.)`, `.list | group_by(. % 2)`, `.list | unique_by(. % 2)`, `.list | min_by(-.)`, `.list | max`, `.list | min`, `.list | unique`, `.list | reverse`, `.list | index(2)`, `.list | indices([2, 3])`, `.text | indices("l")`, `.text | rindex("l")`,
	`.list | contains([1])`, `.a | contains({b: 1})`, `[1] | inside([1, 2])`, `.list | any(. > 2)`, `.list | all(. > 2)`, `.list | flatten`, `[[1, [2]], 3] | flatten(1)`, `[[1, 2], [3]] | transpose`, `.list | first`, `.list | last`, `first(.list[])`, `last(.list[])`, `nth(1; .list[])`,
	`[limit(2; .list[])]`, `[skip(1; .list[])]`, `[range(5)]`, `[range(1; 9; 3)]`, `[range(0, 1; 3, 4)]`, `range("a")`, `[range(3; 0; -1)]`, `reduce .list[] as $x (0; . + $x)`, `[foreach .list[] as $x (0; . + $x; [$x, .])]`, `[.list[] as $x | .list[] as $y | $x * $y]`,
	`.a as {b: $x} | $x`, `.list as [$x, $y] | $x + $y`, `. as {"a": {b: $x}} | $x`, `. as {$text} | $text`, `. as {("te" + "xt"): $x} | $x`, `. as {"\("text")": $x} | $x`, `. as [$x] ?// {text: $x} | $x`,
	`.a.b = 5`, `.a.c = .text`, `.list[0] = 9`, `.list[5] = 9`, `.list[1:2] = [7, 8, 9]`, `.new.x[2].y = 1`, `.list[] = 0`, `.a.b |= . + 1`, `.list[] |= . * 2`, `.list |= map(. + 1)`, `.list[] |= empty`, `(.list[] | select(. > 1)) |= . + 10`, `.list[1] |= empty`, `.a |= with_entries(.value |= tostring)`,
	`.a.b += 5`, `.a.b -= 1`, `.a.b *= 2`, `.a.b /= 2`, `.a.b %= 2`, `.none //= 3`, `.a.b //= 3`, `.a.b += (1, 2)`, `(.a.b, .a.c) = (1, 2)`, `.list[0, 1] = 5`, `(.list | first) = 8`, `(.a | getpath(["b"])) = 1`, `.. |= .`, `(.. | numbers) |= . + 1`, `(.. | strings) |= ascii_upcase`, `.text = (.text | ltrimstr("h"))`,
	`.list[0].x = 1`, `.text[0] = 1`, `.list["a"] = 1`, `.a[0] |= 1`, `.list[-9] = 1`, `.list[.list] = 1`, `to_entries`, `.a | to_entries`, `.a | with_entries(.key |= "x" + .)`, `[{key: "a", value: 1}, {name: "b", value: 2}] | from_entries`, `del(.a)`, `del(.list[0, 2])`, `del(.. | select(. == 2))`, `del(.list[] | select(. > 1))`,
	`delpaths([["a", "b"], ["list", 0]])`, `paths`, `[paths]`, `[paths(type == "number")]`, `[path(..)]`, `path(.a.b)`, `[path(.list[1:])]`, `path(1)`, `getpath(["a", "b"])`, `getpath(["list", 1])`, `getpath(["a", "b", "c"])`, `setpath(["a", "b"]; 1)`, `setpath([]; 1)`, `setpath(1; 1)`, `pick(.a.b)`, `pick(.list[1])`,
	`[tostream]`, `fromstream(tostream)`, `[1 | truncate_stream([[0], 1], [[1, 0], 2])]`, `[..]`, `[recurse]`, `[.list | recurse(if length > 0 then .[1:] else empty end)]`, `[2 | recurse(if . < 20 then . * . else empty end)]`, `walk(if type == "number" then . + 1 else . end)`, `[1 | while(. < 9; . * 2)]`, `1 | until(. > 9; . * 2)`, `[limit(3; repeat(1))]`, `[.list, .list] | [combinations]`, `[[0, 1] | combinations(2)]`,
	`.text | test("l+")`, `.text | test("L"; "i")`, `.text | [match("l"; "g")]`, `.text | match("(?<x>l)(z)?")`, `.text | capture("(?<first>.)(?<rest>.*)")`, `.text | [scan("l")]`, `.text | [scan("(l)(.)")]`, `.text | sub("l"; "L")`, `.text | gsub("l"; "<\(.)>")`, `.text | gsub("(?<c>[aeiou])"; "\(.c)!")`, `.text | gsub(""; "-")`, `.text | gsub("^h"; "")`, `.text | [splits("l+")]`, `.text | split("l")`, `.text | split("L"; "gi")`, `.text | test("(")`, `.text | test("l"; "q")`, `1 | test("l")`, `.text | ascii_downcase`,
	`.text | explode | implode`, `.text | startswith("he")`, `.text | ltrimstr("he")`, `.text | trim`, `.text | tojson | fromjson`, `"[1, 2" | fromjson`, `.list | tojson`, `.id | tostring`, `.amount | tostring`, `"12" | tonumber`, `"x" | tonumber`, `.list | tonumber`, `.id | length`, `.amount | floor`, `.amount | sqrt`, `[.list[] | pow(.; 2)]`, `.when | todate`, `.when | strftime("%Y-%m-%dT%H:%M:%SZ")`, `"2015-03-05T23:51:47Z" | fromdate`, `.when | gmtime | mktime`,
	`if .a then 1 else 2 end`, `if .none then 1 elif .text then 2 end`, `.none // "x"`, `(.none, .text) // 1`, `[.list[] | select(. > 1)]`, `.list | map(select(. != 2)) | length`, `try error("x") catch .`, `try error({a: 1}) catch .a`, `error("x")`, `error`, `error(null)`, `.a | error`, `[.list[] | try (if . == 2 then error("no") else . end) catch "caught"]`, `label $out | .list[] | if . > 1 then ., break $out else . end`, `[label $f | range(9) | ., (select(. == 1) | break $f)]`,
	`isempty(empty)`, `[.list[] | not]`, `.list | IN([1, 2, 3])`, `any(.list[]; . == 2)`, `INDEX(.list[]; .)`, `[JOIN({"1": "one"}; .list[]; tostring)]`, `.list | bsearch(2)`, `.text | ascii`, `input_line_number`, `$ENV`, `env`, `.a | has("b")`, `.list | has(0)`, `"b" | in({b: 1})`, `splits("a")`, `ltrimstr(1)`, `tojson`, `[1, [2]] | tojson`, `infinite | tostring`, `nan | isnan`, `[.[]?]`, `.a | map_values(. + 1)`, `.list | map_values(empty)`, `getpath(["x", 0, "y"])`, `type`, `[.[] | type]`, `add(.list[])`, `.list | abs?`, `[-1, 1] | map(abs)`, `halt_error`, `"x" | halt_error(1)`, `limit(-1; 1)`, `.list | .[1:] |= map(. * 2)`, `have_decnum`, `toarray`, `trimstr("x")`, `.a | tojson | @sh`,
	`def f: . + 1; .list | map(f)`, `def f($x; g): $x + (.list | map(g) | add); f(1; . * 2)`, `def map(f): "mine"; .list | map(.)`, `def tojson: "mine"; tojson`, `def fac: if . <= 1 then 1 else . * (. - 1 | fac) end; 20 | fac`, `def f(tostring): tostring; f(1)`, `def add: 9; .list | add`, `[def f: 1; f + f] | add`, `. as $tostring | .list | tostring`, `def length: 7; [.list | length, "\(length)"]`, `def f: def g: 3; g * 2; f + 1`, `1 as $x | [$x, $x + 1]`, `def _x: 1; _x`,
}

func TestTheBudgetChangesNoOrdinaryExpression(t *testing.T) {
	const text = `{"id": 12345678901234567890, "amount": 10.10, "when": 1425599507, "text": "hello wOrld", "a": {"b": 1}, "list": [1, 2, 3], "z": [{"x": null}, [true, "\u0000<&'\">"]]}`
	all := func(code *gojq.Code, values ...any) (results []string, failure string) {
		input, err := Decode([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		ctx := context.Background()
		if len(values) > 0 {
			ctx = values[0].(*budget)
		}
		given := code.RunWithContext(ctx, input, values...)
		for value, more := given.Next(); more; value, more = given.Next() {
			if err, is := value.(error); is {
				return results, err.Error()
			}
			results = append(results, string(Encode(value)))
		}
		return results, ""
	}
	for _, source := range ordinary {
		query, err := gojq.Parse(source)
		if err != nil {
			t.Errorf("%s: %v", source, err)
			continue
		}
		plain, err := gojq.Compile(query)
		expression, err2 := Compile(source)
		if (err == nil) != (err2 == nil) {
			t.Errorf("%s: %v, and with a budget %v", source, err, err2)
		}
		if err != nil || err2 != nil {
			continue
		}
		want, failure := all(plain)
		got, failure2 := all(expression.code, &budget{Context: t.Context(), deadline: time.Now().Add(time.Hour), place: heavy})
		if !reflect.DeepEqual(want, got) || (failure == "") != (failure2 == "") {
			t.Errorf("%s: %v %s, and with a budget %v %s", source, want, failure, got, failure2)
		}
	}
}

func TestTheDefinitionsAreThoseOfTheEvaluator(t *testing.T) {
	folder, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "github.com/itchyny/gojq").Output()
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(folder)), "builtin.jq"))
	if err != nil {
		t.Fatal(err)
	}
	if string(theirs) != definitions {
		t.Error("builtin.jq is not that of the evaluator: copy it again, and look at what changed")
	}
}

// Each function of the evaluator was examined: it is measured, or its result is small.
func TestEveryFunctionOfTheEvaluatorIsKnown(t *testing.T) {
	harmless := map[string]bool{}
	for _, name := range strings.Fields(`empty/0 not/0 path/1 env/0 input/0 modulemeta/0 builtins/0 utf8bytelength/0 has/1 toboolean/0 type/0 startswith/1 endswith/1
		ltrimstr/1 rtrimstr/1 trimstr/1 ltrim/0 rtrim/0 trim/0 infinite/0 isfinite/0 isinfinite/0 nan/0 isnan/0 isnormal/0 getpath/1 gmtime/0 localtime/0 mktime/0
		strflocaltime/1 strptime/1 now/0 halt/0 debug/1 frexp/0 modf/0
		sin/0 cos/0 tan/0 asin/0 acos/0 atan/0 sinh/0 cosh/0 tanh/0 asinh/0 acosh/0 atanh/0 floor/0 round/0 nearbyint/0 rint/0 ceil/0 trunc/0 significand/0 fabs/0 sqrt/0 cbrt/0
		exp/0 exp10/0 exp2/0 expm1/0 log/0 log10/0 log1p/0 log2/0 logb/0 gamma/0 tgamma/0 lgamma/0 erf/0 erfc/0 j0/0 j1/0 y0/0 y1/0 atan2/2 copysign/2 drem/2 fdim/2 fmax/2 fmin/2
		fmod/2 hypot/2 jn/2 nextafter/2 nexttoward/2 remainder/2 ldexp/2 scalb/2 scalbln/2 yn/2 pow/2 fma/3`) {
		harmless[name] = true
	}
	query, err := gojq.Parse("builtins")
	if err != nil {
		t.Fatal(err)
	}
	names, _ := query.Run(nil).Next()
	for _, name := range names.([]any) {
		name := name.(string)
		if bounded[name] == nil && library()[name] == nil && !harmless[name] {
			t.Errorf("%s is new: measure it, or call it harmless", name)
		}
	}
}

// At most one heavy evaluation runs in the process, however many wait.
func TestHeavyExpressionsRunOneAtATime(t *testing.T) {
	expression, err := Compile(`[range(9)] | map("x" * 1000000) | add | length`)
	if err != nil {
		t.Fatal(err)
	}
	heavy <- struct{}{}
	ctx, cancel := context.WithCancel(t.Context())
	var waiting sync.WaitGroup
	failures := make(chan error, 20)
	for range cap(failures) {
		waiting.Go(func() {
			_, err := expression.Eval(ctx, nil)
			failures <- err
		})
	}
	light, err := Compile(`"a" + "b"`)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := light.Eval(t.Context(), nil); err != nil {
		t.Errorf("a light one: %v", err)
	}
	cancel()
	waiting.Wait()
	<-heavy
	for range cap(failures) {
		if err := <-failures; !errors.Is(err, context.Canceled) {
			t.Errorf("while another ran: %v", err)
		}
	}
	if value, err := expression.Eval(t.Context(), nil); err != nil || value != 9000000 {
		t.Errorf("%v %v", value, err)
	}
}

// Payloads of agents may need the one place all the time. They must not delay the making of an undo.
func TestExpressionsThatAreApartWaitForNoOthers(t *testing.T) {
	expression, err := Compile(`[range(9)] | map("x" * 1000000) | add | length`)
	if err != nil {
		t.Fatal(err)
	}
	heavy <- struct{}{}
	defer func() { <-heavy }()
	ctx, cancel := context.WithTimeout(t.Context(), drainertest.Patience)
	defer cancel()
	if value, err := expression.InOwnQueue().Eval(ctx, nil); err != nil || value != 9000000 {
		t.Errorf("%v %v", value, err)
	}
	if len(heavyApart) > 0 {
		t.Error("it keeps its place")
	}
}

func TestAnExpressionHasNoNameOfTheEvaluators(t *testing.T) {
	t.Parallel()
	for _, source := range []string{
		"$__budget", ". as $__budget | 1", "def f($__budget): 1; f(1)", "def _bounded_add(a; b; c): 1; 1", "_bounded__add(1; 2; 3)", "_multiply(.s; .n)", ". as [$__value] | 1",
		". as {$__budget} | 1", "{$__budget}", "reduce . as $__budget (1; 2)", "foreach . as {a: $__value} (1; 2)", "builtins", "_modify(.a; 1)", `"\($__budget)"`, `{"\($__budget)": 1}`, ".[$__budget]", ". as {(1 | $__budget): $x} | 1",
		"try 1 catch $__budget", "if 1 then 1 elif $__budget then 2 end", "label $x | $__budget", "-$__budget", "@base64 \"\\($__budget)\"", "path($__budget)", "[.[$__budget:]]",
	} {
		if _, err := Compile(source); err == nil || !strings.Contains(err.Error(), "evaluator's own") {
			t.Errorf("%s: %v", source, err)
		}
	}
}

// A value that is found without the evaluator is also the evaluator's result.
func TestAPlainPathGivesWhatTheEvaluatorGives(t *testing.T) {
	t.Parallel()
	const input = `{"id": "ch_1", "charge": {"id": "ch_2", "7": "ch_3"}, "amount": 12345678901234567890, "none": null, "list": ["ch_4"]}`
	for source, isPlain := range map[string]bool{
		".id": true, ".charge.id": true, ".amount": false, ".gone": false, ".none.id": false, ".charge": false,
		`.charge["id"]`: false, ".list[0]": false, ".charge[]": false, ".id?": false, ".id // 1": false, ".id | .": false,
		".": false, "..": false, `"id"`: false, "def id: 1; .id": false, ".charge.id as $x | .id": false, "-.amount": false,
		".charge.gone": false, `.id, .id`: false,
	} {
		query, err := gojq.Parse(source)
		if err != nil {
			t.Fatalf("%s: %v", source, err)
		}
		decoded, err := Decode([]byte(input))
		if err != nil {
			t.Fatal(err)
		}
		text, found := textAt(names(query), decoded)
		if found != isPlain {
			t.Errorf("%s: found without the evaluator is %t, want %t", source, found, isPlain)
		}
		if !found {
			continue
		}
		if value, _ := query.RunWithContext(context.Background(), decoded).Next(); value != text {
			t.Errorf("%s: got %q, and %v by the evaluator", source, text, value)
		}
	}
}

func TestAResultIsMeasured(t *testing.T) {
	t.Parallel()
	const plenty = 1000
	for name, test := range map[string]struct {
		value any
		want  int
	}{
		"null":    {nil, overhead},
		"boolean": {true, overhead},
		"integer": {7, overhead},
		"text":    {"abc", overhead + 3},
		"number":  {json.Number("12345"), overhead + 5},
		"large":   {new(big.Int).Lsh(big.NewInt(1), 80), overhead + 10},
		"list":    {[]any{"ab", nil}, overhead + (overhead + 2) + overhead},
		"object":  {map[string]any{"key": "v"}, overhead + 3 + (overhead + 1)},
	} {
		if got := plenty - measure(test.value, plenty); got != test.want {
			t.Errorf("%s: %d, want %d", name, got, test.want)
		}
	}
}

func TestAResultOfJustTheLimitPasses(t *testing.T) {
	t.Parallel()
	most := strings.Repeat("x", resultLimit-overhead)
	for text, passes := range map[string]bool{most: true, most + "x": false} {
		for _, source := range []string{".text", ".text | ."} {
			expression, err := Compile(source)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := expression.Eval(t.Context(), map[string]any{"text": text}); (err == nil) != passes {
				t.Errorf("%s of %d bytes: %v", source, len(text), err)
			}
		}
	}
}
