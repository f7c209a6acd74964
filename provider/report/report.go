// Package report writes what is known of images for people and for scripts, and
// judges it for the exit status. It is pure: answers in, text out.
package report

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"sigs.k8s.io/yaml"

	"github.com/archkeeper/archkeeper/provider"
	"github.com/archkeeper/archkeeper/provider/platform"
	"github.com/archkeeper/archkeeper/provider/wire"
	"github.com/archkeeper/archkeeper/provider/workloads"
)

// Verdict says how an image stands against a requirement.
type Verdict string

// The verdicts.
const (
	// Met: a node of every required platform would run the image.
	Met Verdict = "met"
	// Unmet: at least one would not, or nothing could run the image.
	Unmet Verdict = "unmet"
	// Undetermined: the platforms are not known.
	Undetermined Verdict = "undetermined"
)

// The exit statuses, worst last but for Undetermined, which Unmet outranks.
const (
	StatusSatisfied    = 0
	StatusUnmet        = 2
	StatusUndetermined = 3
)

// Row is all there is to say of one image. Fields that do not apply are zero.
type Row struct {
	Answer provider.Answer
	// Workloads that use the image.
	Workloads []workloads.Workload
	// VolumeOnly marks an image that is mounted and not run.
	VolumeOnly bool
	// Verdict and the required platforms that are missing, from Judge.
	Verdict Verdict
	Missing []platform.Platform
}

// Rows joins images and their answers, which stand in the same order.
func Rows(images []workloads.Image, answers []provider.Answer) []Row {
	rows := make([]Row, len(images))
	for i, image := range images {
		rows[i] = Row{Answer: answers[i], Workloads: image.Workloads, VolumeOnly: image.VolumeOnly}
	}
	return rows
}

// Judge judges every row.
func Judge(rows []Row, required []platform.Platform) {
	for i := range rows {
		rows[i].Judge(required)
	}
}

// Judge gives the row's verdict on required platforms, and those that are
// missing. Data that is only mounted need not run: an image volume that is no
// container image meets every requirement, as does content-only data.
func (r *Row) Judge(required []platform.Platform) {
	r.Verdict, r.Missing = Met, nil
	if r.Answer.Err != nil {
		switch {
		case r.Answer.Err.Class != provider.ClassNotRunnable:
			r.Verdict = Undetermined
		case !r.VolumeOnly:
			r.Verdict, r.Missing = Unmet, slices.Clone(required)
		}
		return
	}
	if r.Answer.ContentOnly {
		return
	}
	for _, node := range required {
		if !slices.ContainsFunc(r.Answer.Platforms, func(text string) bool {
			p, err := platform.Parse(text)
			return err == nil && p.RunsOn(node)
		}) {
			r.Verdict, r.Missing = Unmet, append(r.Missing, node)
		}
	}
}

// Status gives the exit status for judged rows: StatusUnmet when one is unmet,
// else StatusUndetermined when one is undetermined.
func Status(rows []Row) int {
	status := StatusSatisfied
	for _, row := range rows {
		switch row.Verdict {
		case Unmet:
			return StatusUnmet
		case Undetermined:
			status = StatusUndetermined
		case Met:
		}
	}
	return status
}

// InspectStatus gives the exit status for rows without a requirement:
// StatusUndetermined when one has an error.
func InspectStatus(rows []Row) int {
	for _, row := range rows {
		if row.Answer.Err != nil {
			return StatusUndetermined
		}
	}
	return StatusSatisfied
}

// ParseRequirement reads platforms between commas, such as
// linux/amd64,windows/amd64. Errors name the one that is wrong.
func ParseRequirement(lists []string) ([]platform.Platform, error) {
	var required []platform.Platform
	for _, list := range lists {
		for _, text := range strings.Split(list, ",") {
			p, err := platform.Parse(text)
			if err != nil {
				return nil, fmt.Errorf("required platform %s: it must be os/architecture[/variant], such as linux/arm64", provider.Quote(text))
			}
			if !slices.Contains(required, p) {
				required = append(required, p)
			}
		}
	}
	if len(required) == 0 {
		return nil, errors.New("no platform is required: name at least one, such as linux/arm64")
	}
	return required, nil
}

// Format is a form of output.
type Format string

// The formats.
const (
	Table Format = "table" // columns for people
	Wide  Format = "wide"  // more columns
	JSON  Format = "json"  // an array of the contract's objects
	YAML  Format = "yaml"  // the same as YAML
	Name  Format = "name"  // canonical references, one a line
	CSV   Format = "csv"   // a header and a record for each image
)

// ParseFormat reads a format that is one of the allowed ones.
func ParseFormat(text string, allowed ...Format) (Format, error) {
	if slices.Contains(allowed, Format(text)) {
		return Format(text), nil
	}
	names := make([]string, len(allowed))
	for i, format := range allowed {
		names[i] = string(format)
	}
	return "", fmt.Errorf("unknown output %s: it is one of %s", provider.Quote(text), strings.Join(names, ", "))
}

// object is wire.Image with what check and images add to it.
type object struct {
	wire.Image
	Verdict   Verdict              `json:"verdict,omitempty"`
	Missing   []string             `json:"missing,omitempty"`
	Workloads []workloads.Workload `json:"workloads,omitempty"`
}

func objects(rows []Row) []object {
	list := make([]object, 0, len(rows))
	for _, row := range rows {
		list = append(list, object{
			Image: wire.FromAnswer(row.Answer), Verdict: row.Verdict, Missing: names(row.Missing), Workloads: row.Workloads,
		})
	}
	return list
}

func names(platforms []platform.Platform) []string {
	var texts []string
	for _, p := range platforms {
		texts = append(texts, p.String())
	}
	return texts
}

// Writer writes rows in a format. Nothing is written before everything is known
// to be writable, and with one call of Write.
type Writer struct {
	Format Format
	// Colour the verdicts and errors of a table.
	Colour bool
}

// Write writes the rows to w. Text of others is escaped in tables: no terminal
// ever sees a control character of a registry.
func (f Writer) Write(w io.Writer, rows []Row) error {
	var out bytes.Buffer
	var err error
	switch f.Format {
	case JSON:
		err = writeJSON(&out, rows)
	case YAML:
		err = writeYAML(&out, rows)
	case Name:
		writeNames(&out, rows)
	case CSV:
		err = writeCSV(&out, rows)
	case Table, Wide:
		err = f.writeTable(&out, rows)
	default:
		err = fmt.Errorf("unknown output %s", provider.Quote(string(f.Format)))
	}
	if err != nil {
		return err
	}
	_, err = w.Write(out.Bytes())
	return err
}

func writeJSON(out *bytes.Buffer, rows []Row) error {
	encoder := json.NewEncoder(out)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	return encoder.Encode(objects(rows))
}

func writeYAML(out *bytes.Buffer, rows []Row) error {
	text, err := yaml.Marshal(objects(rows))
	out.Write(text)
	return err
}

// writeNames writes the canonical references of the images that are known; of
// judged ones, of those that are not met.
func writeNames(out *bytes.Buffer, rows []Row) {
	for _, row := range rows {
		if row.Verdict == "" && row.Answer.Err == nil || row.Verdict == Unmet {
			fmt.Fprintln(out, reference(row.Answer))
		}
	}
}

func reference(answer provider.Answer) string {
	if answer.Reference != "" {
		return answer.Reference
	}
	return visible(answer.Image)
}

func writeCSV(out *bytes.Buffer, rows []Row) error {
	writer := csv.NewWriter(out)
	records := [][]string{{"image", "reference", "digest", "kind", "platforms", "architectures", "mirror", "error", "message", "workloads"}}
	for _, row := range rows {
		image := wire.FromAnswer(row.Answer)
		class, message := "", ""
		if image.Error != nil {
			class, message = string(image.Error.Class), image.Error.Message
		}
		record := []string{
			image.Image, image.Reference, image.Digest, string(image.Kind), strings.Join(image.Platforms, " "),
			strings.Join(image.Architectures, " "), image.Mirror, class, message, strings.Join(used(row.Workloads), " "),
		}
		for i := range record {
			record[i] = cell(visible(record[i]))
		}
		records = append(records, record)
	}
	return writer.WriteAll(records)
}

// cell keeps a spreadsheet from taking a field for a formula. Control characters
// are escaped before.
func cell(text string) string {
	if text != "" && strings.ContainsRune("=+-@\t\r", rune(text[0])) {
		return "'" + text
	}
	return text
}

func used(list []workloads.Workload) []string {
	texts := make([]string, len(list))
	for i, workload := range list {
		texts[i] = workload.String()
	}
	return texts
}

// column of a table.
type column struct {
	title string
	shown bool
	value func(Row) string
}

func (f Writer) columns(rows []Row) []column {
	wide := f.Format == Wide
	judged := slices.ContainsFunc(rows, func(r Row) bool { return r.Verdict != "" })
	placed := slices.ContainsFunc(rows, func(r Row) bool { return len(r.Workloads) > 0 })
	return []column{
		{"IMAGE", true, func(r Row) string { return r.Answer.Image }},
		{"KIND", wide, func(r Row) string { return string(r.Answer.Kind) }},
		{"DIGEST", wide, func(r Row) string { return r.Answer.Digest }},
		{"MIRROR", wide, func(r Row) string { return r.Answer.Mirror }},
		{"CREDENTIALS", wide, func(r Row) string { return r.Answer.CredentialSource }},
		{"WORKLOADS", placed, func(r Row) string { return summary(r.Workloads, wide) }},
		{"PLATFORMS", !judged || wide, state},
		{"RESULT", judged, result},
	}
}

// summary names the workloads: all of them when wide, else the first and how
// many more there are.
func summary(list []workloads.Workload, wide bool) string {
	texts := used(list)
	if wide || len(texts) < 2 {
		return strings.Join(texts, ",")
	}
	return texts[0] + " +" + strconv.Itoa(len(texts)-1)
}

// state says what an image runs on, in one cell.
func state(row Row) string {
	switch {
	case row.Answer.Err != nil:
		return "error: " + string(row.Answer.Err.Class)
	case row.Answer.ContentOnly:
		return "any (content only)"
	}
	return strings.Join(row.Answer.Platforms, ",")
}

func result(row Row) string {
	switch row.Verdict {
	case Unmet:
		if row.Answer.Err != nil {
			return "unmet: " + string(row.Answer.Err.Class)
		}
		return "unmet: no " + strings.Join(names(row.Missing), ", no ")
	case Undetermined:
		return "undetermined: " + string(row.Answer.Err.Class)
	case Met:
	}
	return string(row.Verdict)
}

func (f Writer) writeTable(out *bytes.Buffer, rows []Row) error {
	columns := slices.DeleteFunc(f.columns(rows), func(c column) bool { return !c.shown })
	table := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	titles := make([]string, len(columns))
	for i, c := range columns {
		titles[i] = c.title
	}
	fmt.Fprintln(table, strings.Join(titles, "\t"))
	for _, row := range rows {
		cells := make([]string, len(columns))
		for i, c := range columns {
			if cells[i] = visible(c.value(row)); cells[i] == "" {
				cells[i] = "-"
			}
		}
		// The last column alone is coloured: escapes would count as width.
		last := len(cells) - 1
		cells[last] = f.colour(row, cells[last])
		fmt.Fprintln(table, strings.Join(cells, "\t"))
	}
	return table.Flush()
}

func (f Writer) colour(row Row, text string) string {
	const red, yellow, green, reset = "\x1b[31m", "\x1b[33m", "\x1b[32m", "\x1b[0m"
	switch {
	case !f.Colour:
		return text
	case row.Verdict == Unmet:
		return red + text + reset
	case row.Verdict == Undetermined, row.Verdict == "" && row.Answer.Err != nil:
		return yellow + text + reset
	case row.Verdict == Met:
		return green + text + reset
	}
	return text
}

// visible gives text with everything that is not printable ASCII escaped, at
// full length.
func visible(text string) string {
	if strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r > '~' }) {
		return strconv.QuoteToASCII(text)
	}
	return text
}

// Notes gives, one a line, what a person should also know and scripts read
// elsewhere: warnings and, when the format shows no messages, those of errors.
func Notes(rows []Row, format Format) []string {
	var notes []string
	for _, row := range rows {
		image := visible(row.Answer.Image)
		for _, warning := range row.Answer.Warnings {
			notes = append(notes, "warning: "+image+": "+visible(warning))
		}
		if row.Answer.AnonymousFallback {
			notes = append(notes, "warning: "+image+": the registry refused the credentials and answered without any; a kubelet would not pull it")
		}
		if row.Answer.Err != nil && (format == Table || format == Wide || format == Name) {
			notes = append(notes, "error: "+image+": "+visible(row.Answer.Err.Error()))
		}
	}
	return notes
}

// Summary counts the verdicts in one line for a person; empty for rows that
// were not judged.
func Summary(rows []Row) string {
	count := map[Verdict]int{}
	for _, row := range rows {
		count[row.Verdict]++
	}
	if count[""] == len(rows) {
		return ""
	}
	return fmt.Sprintf("%d images: %d met, %d unmet, %d undetermined", len(rows), count[Met], count[Unmet], count[Undetermined])
}
