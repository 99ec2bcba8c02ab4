package dashboards

// Dashboard is a page of rows.
type Dashboard struct {
	UID         string
	Title       string
	Description string
	// OneProvider makes a page for a single one; otherwise any number may be chosen.
	OneProvider bool
	Rows        []Row
}

// Row is a heading, with what it is about below.
type Row struct {
	Title  string
	Panels []Panel
}

// Panel is one graph, or one number.
type Panel struct {
	Title       string
	Unit        Unit
	Description string // what it shows, and what to do
	Queries     []Query
	Number      bool // the newest value alone, in a narrow panel
	// Warn and Alarm colour what is over them. Zero colours nothing.
	Warn, Alarm float64
}

// Query is PromQL, and the name of each of its series.
type Query struct {
	Expr   string
	Legend string
}

// Unit is one of Grafana's.
type Unit string

// The units that panels have.
const (
	Count     Unit = "short"
	PerSecond Unit = "cps"
	Seconds   Unit = "s"
	Bytes     Unit = "bytes"
	Ratio     Unit = "percentunit"
	YesNo     Unit = "bool_yes_no"
)

// All lists the dashboards by their file.
func All() map[string]Dashboard {
	return map[string]Dashboard{"overview.json": overview(), "provider.json": provider()}
}

func one(expr, legend string) []Query { return []Query{{expr, legend}} }

// quantiles are those of a histogram's rate, by some labels.
func quantiles(histogram, filter, by, legend string, of ...string) (queries []Query) {
	if by != "" {
		by = ", " + by
	}
	for _, quantile := range of {
		queries = append(queries, Query{
			Expr:   "histogram_quantile(" + quantile + ", sum by (le" + by + ") (rate(" + histogram + "_bucket{" + filter + "}[$__rate_interval])))",
			Legend: "p" + quantile[2:] + legend,
		})
	}
	return queries
}
