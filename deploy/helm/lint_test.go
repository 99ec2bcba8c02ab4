package helm_test

import (
	"testing"

	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"
)

func TestHelmFindsNothingToComplainAbout(t *testing.T) {
	t.Parallel()
	all := scenarios(t)
	delete(all, "everything") // needs rules and dashboards, which are copied into the chart later
	for name, v := range all {
		for _, message := range lint.All(folder, v.merged(), namespace, true).Messages {
			if message.Severity > support.InfoSev {
				t.Errorf("%s: %s", name, message)
			}
		}
	}
}
