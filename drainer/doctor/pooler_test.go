package doctor

import (
	"testing"

	"github.com/agentoutbox/drainer/drainertest"
)

func TestAPoolerIsToldByWhatItDoes(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		poolMode, query string
		size            int
		want            []Finding
	}{
		"session": {"session", "", 20, []Finding{
			{"pooler", OK, "a pooler in session mode; prepared statements work", ""},
			{"notifications", OK, "LISTEN and NOTIFY work", ""},
		}},
		"transaction": {"transaction", "", 20, []Finding{
			{"pooler", Problem, "a pooler in transaction mode loses prepared statements, which this database URL asks for", "add default_query_exec_mode=exec to the database URL; or let PgBouncer 1.21 or later keep prepared statements (max_prepared_statements)"},
			unheard,
		}},
		"transaction, with exec": {"transaction", "default_query_exec_mode=exec", 20, []Finding{
			{"pooler", OK, "a pooler in transaction mode, and statements are not prepared (default_query_exec_mode=exec)", ""},
			unheard,
		}},
		"transaction, with one server connection": {"transaction", "default_query_exec_mode=exec", 1, []Finding{
			{"pooler", OK, "a pooler in transaction mode, and statements are not prepared (default_query_exec_mode=exec)", ""},
			unheard,
		}},
		"statement": {"statement", "", 20, []Finding{
			{"pooler", Problem, "a pooler in statement mode, which refuses transactions", "set pool_mode = session or transaction for this database"},
			unheard,
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := healthy(t)
			w.Database = w.config(drainertest.PgBouncer(t, w.url(test.query), test.poolMode, test.size))
			found := w.examine()
			for _, want := range test.want {
				if !contains(found, want) {
					t.Errorf("want %+v, found %s", want, lines(found))
				}
			}
			for _, f := range found {
				if isExpected := contains(test.want, f); f.Verdict != OK && !isExpected {
					t.Errorf("also found %+v", f)
				}
			}
		})
	}
}

var unheard = Finding{
	"notifications", Warning, "a notification did not arrive within 2s, so new intents are found by polling, every 250 ms",
	"if a quarter of a second matters: connect to Postgres itself, or to a pooler in session mode",
}

func contains(findings []Finding, want Finding) bool {
	for _, f := range findings {
		if f == want {
			return true
		}
	}
	return false
}
