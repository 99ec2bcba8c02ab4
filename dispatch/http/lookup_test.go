package http_test

import (
	"strings"
	"testing"

	"github.com/agentoutbox/drainer/dispatch"
	dispatchhttp "github.com/agentoutbox/drainer/dispatch/http"
)

const findsWires = `{path: /wires, method: GET, response: {ref: ".data[0].id", rules: [{when: ".status == 200 and .body.data == []", outcome: absent}]}}`

func TestAToolThatAnswersLookupsFindsOnlyWhatItCanName(t *testing.T) {
	t.Parallel()
	asJSON := map[string]string{"Content-Type": "application/json"}
	for name, test := range map[string]struct {
		reply reply
		want  dispatch.Result
	}{
		"found":          {reply{200, asJSON, `{"data": [{"id": "w_1"}]}`}, dispatch.Result{Outcome: dispatch.Completed, ProviderRef: "w_1"}},
		"absent":         {reply{200, asJSON, `{"data": []}`}, dispatch.Result{Outcome: dispatch.Absent, ErrorClass: "absent"}},
		"no reference":   {reply{200, asJSON, `{"data": [{}]}`}, dispatch.Result{Outcome: dispatch.Ambiguous, ErrorClass: "no_reference"}},
		"another shape":  {reply{200, asJSON, `{"items": []}`}, dispatch.Result{Outcome: dispatch.Ambiguous, ErrorClass: "no_reference"}},
		"a wrong path":   {reply{404, asJSON, `{}`}, dispatch.Result{Outcome: dispatch.Rejected, ErrorClass: "http_404"}},
		"cannot say now": {reply{status: 503}, dispatch.Result{Outcome: dispatch.Throttled, ErrorClass: "http_503"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := answer(t, test.reply, "", dispatch.ToolSpec{Class: dispatch.ReadOnly, AnswersLookups: true, Settings: block(findsWires)})
			if got.Outcome != test.want.Outcome || got.ProviderRef != test.want.ProviderRef || got.ErrorClass != test.want.ErrorClass {
				t.Errorf("got %+v, want %+v", got, test.want)
			}
		})
	}
}

func TestAToolThatAnswersLookupsMustSayWhatNothingLooksLike(t *testing.T) {
	t.Parallel()
	_, err := dispatchhttp.New(dispatch.Spec{
		Settings: block("base_url: https://bank.example"),
		Tools: map[string]dispatch.ToolSpec{"find": {
			Class: dispatch.ReadOnly, AnswersLookups: true, Settings: block("{path: /wires, method: GET}"),
		}},
	})
	if err == nil || !strings.Contains(err.Error(), "outcome: absent") {
		t.Errorf("%v, want the rule that is missing", err)
	}
}
