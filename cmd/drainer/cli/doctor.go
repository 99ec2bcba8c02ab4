package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/drainer/config"
	"github.com/agentoutbox/drainer/drainer/doctor"
	"github.com/agentoutbox/drainer/internal/pgpool"
	"github.com/agentoutbox/drainer/migrations"
)

func newDoctor(options *options) *cobra.Command {
	var offline bool
	command := &cobra.Command{
		Use:   "doctor",
		Short: "Find out what is wrong, and what to do about it",
		Long: `doctor checks the database, the outbox, and the connection to each provider. Each
check is ok, a warning, a problem or not checked, and names a cure. doctor changes
nothing and sends nothing to a provider.

Run it on the daemon's machine, with the daemon's login. Without --config it checks
the database alone. With --offline it connects to no provider and reads no secret of
one; it names what it did not check.

Exit 0: no problem, perhaps warnings. 1: a problem. 4: the database cannot be
reached. 5: its schema is behind.`,
		Example: `  drainer doctor --config drainer.yaml

  # on a laptop, without the production secrets
  drainer doctor --offline --config drainer.yaml

  # only what is not as it should be
  drainer doctor --config drainer.yaml -o json | jq '.findings[] | select(.verdict != "ok")'`,
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			patient, err := options.patient(command, offline)
			if err != nil {
				return err
			}
			findings, unreachable := doctor.Examine(command.Context(), patient)
			if err := options.printFindings(command, findings); err != nil {
				return err
			}
			return judge(findings, unreachable)
		},
	}
	command.Flags().BoolVar(&offline, "offline", false, "go to no provider, and read no secret but the database's URL")
	return command
}

// patient returns the installation that the configuration describes, or only the database without one.
func (o *options) patient(command *cobra.Command, offline bool) (doctor.Patient, error) {
	loaded := &config.Config{}
	load, withoutURL := o.loadConfig, ""
	if offline {
		load = o.loadPolicies
	}
	if o.configPath != "" {
		var err error
		loaded, err = load(command)
		if offline && o.databaseURL == "" && err != nil {
			withoutURL = oneLine(err.Error())
			var still error
			if loaded, still = o.loadConfigBy(command, func(path string, registry dispatch.Registry) (*config.Config, error) {
				return config.LoadWithoutSecrets(path, registry, false)
			}); still != nil {
				return doctor.Patient{}, err
			}
			loaded.Database = config.Database{}
		} else if err != nil {
			return doctor.Patient{}, err
		}
	}
	patient := doctor.Patient{Lease: loaded.Worker.Lease, Providers: loaded.Providers, Offline: offline, Unread: map[string][]string{}}
	for _, unread := range loaded.Unread {
		patient.Unread[unread.Provider] = append(patient.Unread[unread.Provider], unread.References...)
	}
	database, err := o.databaseOf(command, loaded)
	switch {
	case err != nil && offline:
		patient.WithoutDatabase = cmp.Or(withoutURL, "no database is named")
		return patient, nil
	case err != nil:
		return doctor.Patient{}, err
	}
	patient.Database, patient.NoLogin = database.Config(command.Context())
	if patient.NoLogin != nil && !errors.Is(patient.NoLogin, pgpool.ErrNoLogin) {
		return doctor.Patient{}, patient.NoLogin
	}
	return patient, nil
}

// judge turns the findings into the error that chooses the exit code. The findings themselves are on standard
// output.
func judge(findings []doctor.Finding, unreachable error) error {
	if err := migrations.Intact(); err != nil {
		return err
	}
	switch {
	case pgpool.Refused(unreachable):
		return pgpool.ErrRefused
	case errors.Is(unreachable, pgpool.ErrNoLogin):
		return pgpool.ErrNoLogin
	case unreachable != nil:
		return errDatabaseUnreachable
	}
	isBehind := func(f doctor.Finding) bool { return f.Check == doctor.SchemaCheck && f.Verdict == doctor.Problem }
	if slices.ContainsFunc(findings, isBehind) {
		return migrations.ErrBehind
	}
	if n := doctor.Count(findings, doctor.Problem); n > 0 {
		return errors.New(tally(n, "problem"))
	}
	return nil
}

// diagnosis is the output of `doctor -o json`.
type diagnosis struct {
	Problems   int              `json:"problems"`
	Warnings   int              `json:"warnings"`
	OK         int              `json:"ok"`
	NotChecked int              `json:"not_checked"`
	Findings   []doctor.Finding `json:"findings"`
}

func (o *options) printFindings(command *cobra.Command, findings []doctor.Finding) error {
	all := diagnosis{
		Problems: doctor.Count(findings, doctor.Problem), Warnings: doctor.Count(findings, doctor.Warning),
		OK: doctor.Count(findings, doctor.OK), NotChecked: doctor.Count(findings, doctor.NotChecked),
		Findings: findings,
	}
	if o.output == jsonOutput {
		return printJSON(command.OutOrStdout(), all)
	}
	return all.write(command.OutOrStdout())
}

// write prints the findings, and each cure on the line below its finding.
func (d diagnosis) write(to io.Writer) error {
	s := screenOf(to)
	var text strings.Builder
	width := 0
	for _, f := range d.Findings {
		width = max(width, len(f.Check))
	}
	for _, f := range d.Findings {
		verdict, check := strings.ReplaceAll(string(f.Verdict), "_", " "), f.Check
		for _, line := range s.fold(f.Seen, 11+2+width+2) {
			fmt.Fprintf(&text, "%-11s  %-*s  %s\n", verdict, width, check, line)
			verdict, check = "", ""
		}
		if f.Cure != "" {
			fmt.Fprintf(&text, "%-11s  %-*s  → %s\n", "", width, "", f.Cure)
		}
	}
	fmt.Fprintf(&text, "\n%s, %s, %d ok, %d not checked\n", tally(d.Problems, "problem"), tally(d.Warnings, "warning"), d.OK, d.NotChecked)
	return s.write(text.String())
}

func tally(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
