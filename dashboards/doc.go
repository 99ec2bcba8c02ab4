// Package dashboards is the list of what the Grafana dashboards show.
//
// To change a dashboard, change overview.go or provider.go, then write the JSON anew:
//
//	go test ./dashboards -args -update
//
// A panel says what it shows, in which unit, and what to do about it. Its queries are
// written with two placeholders for the dashboard's variables: {<job>} is everything of
// the chosen namespaces and jobs, {<provider>} also heeds the chosen providers.
//
// Alert rules and their unit tests are kept by hand, in alerts.yaml and alerts.test.yaml.
package dashboards
