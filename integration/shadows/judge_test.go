package shadows_test

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// A judge finds the calls of a statement that a stranger could take over. Postgres looks for a function or an
// operator in every schema of the search_path. The one in pg_catalog is sure to win only if it fits the arguments
// exactly. One in another schema can fit better if an argument needs a cast, if a literal has no type yet, or if a
// parameter takes any type.
type judge struct {
	conn      *pgx.Conn
	printed   string // the analyzed statement
	routines  map[int]routine
	operators map[int]routine
}

// A routine is a function or an operator as it is declared.
type routine struct {
	name     string
	catalog  bool // it is in pg_catalog
	variadic bool
	takes    []int // types
	any      []int // those types that stand for several types
}

const routinesSQL = `SELECT p.oid::int, p.proname, p.pronamespace = 'pg_catalog'::regnamespace, p.provariadic <> 0::oid,
	ARRAY(SELECT t.oid::int FROM unnest(p.proargtypes::oid[]) WITH ORDINALITY AS a (oid, n) JOIN pg_type t USING (oid) ORDER BY n),
	ARRAY(SELECT DISTINCT t.oid::int FROM unnest(p.proargtypes::oid[]) AS a (oid) JOIN pg_type t USING (oid) WHERE t.typtype = 'p')
	FROM pg_proc p`

const operatorsSQL = `SELECT o.oid::int, o.oprname, o.oprnamespace = 'pg_catalog'::regnamespace, false,
	ARRAY(SELECT t.oid::int FROM unnest(ARRAY[o.oprleft, o.oprright]) WITH ORDINALITY AS a (oid, n) JOIN pg_type t USING (oid) ORDER BY n),
	ARRAY(SELECT DISTINCT t.oid::int FROM unnest(ARRAY[o.oprleft, o.oprright]) AS a (oid) JOIN pg_type t USING (oid) WHERE t.typtype = 'p')
	FROM pg_operator o`

func newJudge(ctx context.Context, url string) (*judge, error) {
	config, err := pgx.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	j := &judge{}
	config.OnNotice = func(_ *pgconn.PgConn, notice *pgconn.Notice) {
		if strings.HasPrefix(notice.Message, "parse tree") {
			j.printed = notice.Detail
		}
	}
	if j.conn, err = pgx.ConnectConfig(ctx, config); err != nil {
		return nil, err
	}
	if j.routines, err = j.declared(ctx, routinesSQL); err != nil {
		return nil, err
	}
	if j.operators, err = j.declared(ctx, operatorsSQL); err != nil {
		return nil, err
	}
	_, err = j.conn.Exec(ctx, `SET search_path = pg_catalog, pg_temp; SET debug_print_parse = on;
		SET debug_pretty_print = off; SET client_min_messages = log`)
	return j, err
}

func (j *judge) declared(ctx context.Context, sql string) (map[int]routine, error) {
	all := map[int]routine{}
	rows, _ := j.conn.Query(ctx, sql) // ForEachRow returns the error too
	var id int
	var r routine
	_, err := pgx.ForEachRow(rows, []any{&id, &r.name, &r.catalog, &r.variadic, &r.takes, &r.any}, func() error {
		all[id] = r
		r = routine{}
		return nil
	})
	return all, err
}

// verdicts returns each call of a statement that a stranger could take over, with the reason.
func (j *judge) verdicts(ctx context.Context, sql string) ([]string, error) {
	tree, err := j.analyze(ctx, sql)
	if err != nil {
		return nil, err
	}
	s := statement{judge: j, sql: sql, unnested: map[int]int{}}
	tree.each(func(n *node) {
		if n.name == "FUNCEXPR" {
			s.unnested[n.number("location")]++
		}
	})
	tree.each(s.examine)
	slices.Sort(s.found)
	return slices.Compact(s.found), nil
}

// strangers returns the functions and operators of a statement that Postgres finds in public.
func (j *judge) strangers(ctx context.Context, sql string) (found []string, err error) {
	if _, err = j.conn.Exec(ctx, "SET search_path = public"); err != nil {
		return nil, err
	}
	tree, err := j.analyze(ctx, sql)
	if err != nil {
		return nil, err
	}
	tree.each(func(n *node) {
		for field, known := range map[string]map[int]routine{"funcid": j.routines, "winfnoid": j.routines, "aggfnoid": j.routines, "opno": j.operators} {
			if called, isCall := known[n.number(field)]; isCall && !called.catalog {
				found = append(found, called.name)
			}
		}
	})
	_, err = j.conn.Exec(ctx, "SET search_path = pg_catalog, pg_temp")
	return found, err
}

func (j *judge) analyze(ctx context.Context, sql string) (*node, error) {
	j.printed = ""
	if _, err := j.conn.Prepare(ctx, "", sql); err != nil {
		return nil, err
	}
	if j.printed == "" {
		return nil, errors.New("Postgres printed no analyzed statement")
	}
	return parseTree(j.printed)
}

type statement struct {
	*judge
	sql      string
	unnested map[int]int // number of functions at each location
	found    []string
}

const implicit = "2" // COERCE_IMPLICIT_CAST: the cast is not in the text

var (
	qualifiedFunction = regexp.MustCompile(`^(?i)pg_catalog\s*\.`)
	qualifiedOperator = regexp.MustCompile(`^(?i)operator\s*\(\s*pg_catalog\s*\.`)
	typedLiteral      = regexp.MustCompile(`^(?i:e)?'(?:[^']|'')*'\s*\)*\s*::`)
	untypedLiteral    = regexp.MustCompile(`^(?i)(?:e?'|null\b)`)
	typedParameter    = regexp.MustCompile(`^\$\d+\s*::`)
)

func (s *statement) examine(n *node) {
	switch n.name {
	case "FUNCEXPR":
		if n.text("funcformat") == "0" { // the others are casts and SQL's own syntax, which always use pg_catalog
			s.call(n, n.number("funcid"), n.nodes("args"))
		}
	case "WINDOWFUNC":
		s.call(n, n.number("winfnoid"), n.nodes("args"))
	case "AGGREF":
		var args []*node
		for _, target := range n.nodes("args") {
			args = append(args, target.fields["expr"][0].(*node))
		}
		s.call(n, n.number("aggfnoid"), args)
	case "OPEXPR", "DISTINCTEXPR", "NULLIFEXPR", "SCALARARRAYOPEXPR":
		s.operate(n.number("location"), n.number("opno"), n.nodes("args"))
	case "ROWCOMPARE", "ROWCOMPAREEXPR":
		left, right := n.nodes("largs"), n.nodes("rargs")
		for i, operator := range n.list("opnos")[1:] { // the first element marks them as ids
			id, _ := strconv.Atoi(operator.(string))
			s.operate(-1, id, []*node{left[i], right[i]})
		}
	}
}

func (s *statement) call(n *node, id int, args []*node) {
	at, declared := n.number("location"), s.routines[id]
	if !declared.catalog || qualifiedFunction.MatchString(s.from(at)) {
		return // the text must name the schema of a function outside of pg_catalog
	}
	if declared.name == "unnest" && len(args) == 1 && s.unnested[at] > 1 {
		return // in FROM with several arrays, the grammar always uses pg_catalog
	}
	var why string
	switch {
	case declared.variadic, len(args) > len(declared.takes):
		why = "it takes any number of arguments"
	case len(n.list("aggdirectargs")) > 0:
		why = "it has direct arguments, which are not judged here"
	}
	for i, arg := range args {
		if why != "" {
			break
		}
		switch why = s.inexact(declared, i, arg); {
		case why == "" && s.isUntyped(arg):
			why = "a literal has no type: write 'x'::text"
		}
	}
	if why != "" {
		s.found = append(s.found, fmt.Sprintf("%s at %s: %s; give each argument its exact type, or write pg_catalog.%s",
			declared.name, s.excerpt(at), why, declared.name))
	}
}

func (s *statement) operate(at, id int, args []*node) {
	declared := s.operators[id]
	if !declared.catalog || (at >= 0 && qualifiedOperator.MatchString(s.from(at))) {
		return
	}
	var why string
	untyped := 0
	for i, arg := range args {
		if why == "" {
			why = s.inexact(declared, i, arg)
		}
		if s.isUntyped(arg) {
			untyped++
		}
	}
	// A literal without a type gets the type of the other side. Only then does it fit exactly.
	if why == "" && untyped > 0 && (untyped == len(args) || declared.takes[0] != declared.takes[1]) {
		why = "a literal has no type: write 'x'::text"
	}
	if why != "" {
		s.found = append(s.found, fmt.Sprintf("operator %s at %s: %s; give each side its exact type, or write OPERATOR(pg_catalog.%s)",
			declared.name, s.excerpt(at), why, declared.name))
	}
}

// inexact returns why an argument does not fit the declared type without a cast. It returns "" if it fits.
func (s *statement) inexact(declared routine, i int, arg *node) string {
	if slices.Contains(declared.any, declared.takes[i]) {
		return "it takes any type"
	}
	switch arg.name {
	case "NAMEDARGEXPR", "COLLATE", "COLLATEEXPR":
		return s.inexact(declared, i, arg.fields["arg"][0].(*node))
	case "FUNCEXPR", "RELABELTYPE", "COERCEVIAIO", "ARRAYCOERCEEXPR", "CONVERTROWTYPEEXPR", "COERCETODOMAIN":
		for _, format := range []string{"funcformat", "relabelformat", "coerceformat", "convertformat", "coercionformat"} {
			if arg.text(format) == implicit {
				return fmt.Sprintf("argument %d is cast without a word", i+1)
			}
		}
	case "PARAM":
		if arg.text("paramkind") == "0" && !typedParameter.MatchString(s.from(arg.number("location"))) {
			return fmt.Sprintf("a parameter has the type that its client sends: write $%s::type", arg.text("paramid"))
		}
	}
	return ""
}

// isUntyped reports whether a literal took its type from its context.
func (s *statement) isUntyped(arg *node) bool {
	if arg.name == "NAMEDARGEXPR" {
		return s.isUntyped(arg.fields["arg"][0].(*node))
	}
	at := arg.number("location")
	if arg.name != "CONST" || at < 0 || !untypedLiteral.MatchString(s.from(at)) {
		return false
	}
	return !typedLiteral.MatchString(s.from(at)) && !strings.HasSuffix(strings.ToLower(strings.TrimRight(s.sql[:at], " \n\t")), "interval")
}

func (s *statement) from(at int) string {
	if at < 0 || at >= len(s.sql) {
		return ""
	}
	return s.sql[at:]
}

func (s *statement) excerpt(at int) string {
	if at < 0 {
		return "a place that Postgres does not report (USING, CASE x WHEN or a row)"
	}
	text := s.from(at)
	return fmt.Sprintf("line %d, %q", 1+strings.Count(s.sql[:at], "\n"), strings.Join(strings.Fields(text[:min(len(text), 60)]), " "))
}
