/*
 * Stands in for Pyxis: takes its options on the command line of srun, sbatch and salloc, and runs the task on the host.
 *
 * Every option given becomes a variable PYXIS_<OPTION> of the task and a member of one JSON line per task in the file
 * named by "record=". An image whose name holds the text of "refuse=" fails as an import fails. The error is raised when
 * the task starts, because srun would end with 0 if it were raised before.
 */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <slurm/spank.h>

SPANK_PLUGIN(pyxis, 1);

enum { IMAGE, MOUNTS, WORKDIR, NAME, SAVE, ENV, HOME, ROOT, ENTRYPOINT, WRITABLE, FIELDS };

static const char *field[FIELDS] = {"image", "mounts", "workdir",    "name",       "save",
				    "env",   "home",   "remap_root", "entrypoint", "writable"};
static char *given[FIELDS];
static const char *record = NULL;
static const char *refuse = NULL;

/* The number an option hands to its callback: which field, and for a switch whether it turns the field on. */
#define TEXT(which) ((which) * 4 + 2)
#define SWITCH(which, on) ((which) * 4 + (on))

static int starts_like_a_path(const char *text)
{
	return text[0] == '/' || text[0] == '.';
}

/* One SOURCE[:TARGET[:FLAGS]]; a source may also be the words tmpfs and umount. */
static int mount_is_good(char *mount)
{
	char *target = strchr(mount, ':');
	char *flags;

	if (target) {
		*target++ = '\0';
		if ((flags = strchr(target, ':')))
			*flags = '\0';
		if (!starts_like_a_path(target))
			return 0;
	}
	return starts_like_a_path(mount) || (target && (!strcmp(mount, "tmpfs") || !strcmp(mount, "umount")));
}

static int mounts_are_good(const char *text)
{
	char *copy = strdup(text), *next = NULL, *mount;
	int good = 1;

	for (mount = strtok_r(copy, ",", &next); mount && good; mount = strtok_r(NULL, ",", &next))
		good = mount_is_good(mount);
	free(copy);
	return good;
}

/* Called where the command line is read, and once more by the daemon that starts the task. */
static int take(int number, const char *argument, int remote)
{
	int which = number / 4, text = number % 4 == 2;
	const char *value = text ? argument : (number % 4 ? "1" : "0");

	(void) remote;
	if (text && (!value || !*value)) {
		slurm_error("pyxis: --container-%s: an argument is required", field[which]);
		return -1;
	}
	if (which == MOUNTS && !mounts_are_good(value)) {
		slurm_error("pyxis: --container-mounts: invalid format: %s", value);
		return -1;
	}
	if (given[which] && strcmp(given[which], value)) {
		slurm_error("pyxis: --container-%s specified multiple times", field[which]);
		return -1;
	}
	free(given[which]);
	given[which] = strdup(value);
	return 0;
}

static struct spank_option options[] = {
	{"container-image", "IMAGE", "[pyxis] the image", 1, TEXT(IMAGE), take},
	{"container-mounts", "SOURCE:TARGET[:FLAGS],...", "[pyxis] bind mounts", 1, TEXT(MOUNTS), take},
	{"container-workdir", "FOLDER", "[pyxis] where the task starts", 1, TEXT(WORKDIR), take},
	{"container-name", "NAME", "[pyxis] keeps the container under a name", 1, TEXT(NAME), take},
	{"container-save", "FILE", "[pyxis] saves the container", 1, TEXT(SAVE), take},
	{"container-env", "NAME,...", "[pyxis] variables that win over the image's", 1, TEXT(ENV), take},
	{"container-mount-home", NULL, "[pyxis] mounts the home", 0, SWITCH(HOME, 1), take},
	{"no-container-mount-home", NULL, "[pyxis] does not mount the home", 0, SWITCH(HOME, 0), take},
	{"container-remap-root", NULL, "[pyxis] root inside", 0, SWITCH(ROOT, 1), take},
	{"no-container-remap-root", NULL, "[pyxis] not root inside", 0, SWITCH(ROOT, 0), take},
	{"container-entrypoint", NULL, "[pyxis] runs the entrypoint", 0, SWITCH(ENTRYPOINT, 1), take},
	{"no-container-entrypoint", NULL, "[pyxis] does not run the entrypoint", 0, SWITCH(ENTRYPOINT, 0), take},
	{"container-writable", NULL, "[pyxis] a writable file system", 0, SWITCH(WRITABLE, 1), take},
	{"container-readonly", NULL, "[pyxis] a read-only file system", 0, SWITCH(WRITABLE, 0), take},
	SPANK_OPTIONS_TABLE_END,
};

int slurm_spank_init(spank_t spank, int count, char **words)
{
	struct spank_option *option;
	int i;

	for (i = 0; i < count; i++) {
		if (!strncmp(words[i], "record=", 7))
			record = words[i] + 7;
		if (!strncmp(words[i], "refuse=", 7))
			refuse = words[i] + 7;
	}
	for (option = options; option->name; option++)
		if (spank_option_register(spank, option) != ESPANK_SUCCESS)
			return -1;
	return 0;
}

static void write_text(FILE *out, const char *text)
{
	fputc('"', out);
	for (; *text; text++) {
		if (*text == '"' || *text == '\\')
			fprintf(out, "\\%c", *text);
		else if ((unsigned char) *text < ' ')
			fprintf(out, "\\u%04x", *text);
		else
			fputc(*text, out);
	}
	fputc('"', out);
}

/* The whole line goes out in one write, because the tasks of a step share the file. */
static int write_record(spank_t spank)
{
	uint32_t job = 0, step = 0;
	int rank = 0, file, i, bad;
	char *line = NULL;
	size_t size = 0;
	FILE *out = open_memstream(&line, &size);

	if (!out)
		return -1;
	spank_get_item(spank, S_JOB_ID, &job);
	spank_get_item(spank, S_JOB_STEPID, &step);
	spank_get_item(spank, S_TASK_GLOBAL_ID, &rank);
	fprintf(out, "{\"job\": %u, \"step\": %u, \"rank\": %d", job, step, rank);
	for (i = 0; i < FIELDS; i++)
		if (given[i]) {
			fprintf(out, ", \"%s\": ", field[i]);
			write_text(out, given[i]);
		}
	fputs("}\n", out);
	fclose(out);
	file = open(record, O_WRONLY | O_APPEND | O_CLOEXEC);
	bad = file < 0 || write(file, line, size) != (ssize_t) size;
	if (file >= 0)
		close(file);
	free(line);
	return bad ? -1 : 0;
}

/* In the process that becomes the task, just before it does. */
int slurm_spank_task_init(spank_t spank, int count, char **words)
{
	char name[64];
	int i, j, any = 0;

	(void) count;
	(void) words;
	for (i = 0; i < FIELDS; i++) {
		if (!given[i])
			continue;
		any = 1;
		snprintf(name, sizeof name, "PYXIS_%s", field[i]);
		for (j = 6; name[j]; j++)
			if (name[j] >= 'a' && name[j] <= 'z')
				name[j] -= 'a' - 'A';
		spank_setenv(spank, name, given[i], 1);
	}
	if (any && record && write_record(spank))
		slurm_error("pyxis: cannot write %s", record);
	if (refuse && given[IMAGE] && strstr(given[IMAGE], refuse)) {
		slurm_error("pyxis: failed to import docker image");
		slurm_error("pyxis: printing enroot log file:");
		slurm_error("pyxis:     [INFO] Querying registry for permission grant");
		slurm_error("pyxis:     [ERROR] URL https://%s returned error code: 404 Not Found", given[IMAGE]);
		return -1;
	}
	return 0;
}
