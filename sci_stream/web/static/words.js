// All texts of the page, by key; {name} is replaced by a value. Messages of the nodes are in English only.

const en = {
  language: "English",
  // header
  simulated: "SIMULATED", simulated_title: "No real camera: these pictures are computed",
  record: "Record", stop: "Stop", record_title: "Start or stop recording (R)",
  save: "Save", save_title: "Download this snapshot: pictures and data (S)",
  files: "Files", files_title: "Download stills, clips and recordings (O)",
  dark_lab: "Dark lab", dark_lab_title: "Red and dim, for a dark lab (D)", help_title: "Keyboard shortcuts and settings (?)",
  problems: "Problems", no_series: "no series yet",
  // pictures
  pictures: "Pictures", video: "Video", video_label: "Reconstructed video", coded: "Coded snapshot",
  choose_white: "Click something white or grey", too_bright: "That point is too bright for a white balance: pick a grey one", too_dark: "That point is too dark for a white balance: pick something grey or white", leave: "Cancel",
  video_size: "{n} frames, {width}×{height}", shrunk: ", reduced to {width}×{height}: pause and zoom for full resolution", every_pixel: ", full resolution",
  coded_size: "one exposure, {width}×{height}{bayer}", coded_of: ", of #{seq}", coded_not_sent: "not sent with the video",
  coded_not_kept: "not kept with this snapshot",
  // playback
  playback: "Playback", frame_before: "Frame before", frame_before_title: "Frame before (←)", pause: "Pause", play: "Play",
  pause_title: "Pause or play (space)", next_frame: "Next frame", next_frame_title: "Next frame (→)", snapshot: "Snapshot",
  frame_of_snapshot: "Frame of the snapshot", frame_n: "frame {n} of {of}",
  loop: "loop", loop_title: "Repeat the newest snapshot until the next one arrives (L)",
  film: "The frames of this exposure", cut: "Cut", cut_title: "Space-time cut along a line, trace of the region (C)", cut_of: "Space-time cut", new_line: "line", draw_line: "Draw a line on the video",
  cut_is: "{n} frames, {ms} ms each", spectrum: "spectrum", spectrum_title: "The trace by frequency", spectrum_is: "strongest at {hz} Hz, up to {most} Hz", csv: "CSV", csv_title: "Values of the cut and of the trace",
  profile: "Profile of the newest frame along the line", trace: "Mean of the region, frame by frame",
  rate: "rate", rate_title: "Frames played per second; auto: at the rate of the camera", rate_label: "Playback rate", auto: "auto",
  view: "View", both: "Both", both_title: "Both pictures (V)", video_title: "Video alone (V)", coded_short: "Coded", coded_title: "Coded snapshot alone (V)",
  full: "Full screen", full_title: "Full screen (F)", full_refused: "The browser does not allow full screen here.",
  panels: "Panels", panels_title: "Show or hide the panels (B)",
  fit: "Fit", fit_title: "The whole picture (Z)", one_to_one: "1:1", one_to_one_title: "One sensor pixel per screen pixel (Z)",
  roi: "Region", roi_title: "Draw a region to measure (G)", zebra: "Zebra", zebra_title: "Mark clipped pixels with stripes (X)",
  timeline: "Timeline: the last five minutes", timeline_title: "Click or drag to look back; red: lost snapshots. Memory: {used} of {most}",
  to_live: "To live", to_live_title: "Back to the newest video (Home on the timeline)",
  ago: "−{time}",
  // figures
  now: "Now", camera: "Camera", per_second: "snapshots/s", frames_per_second: "frames/s", latency: "Latency",
  latency_title: "From exposure to the sink, median of the last ten seconds", last_10_s: "last 10 s", age: "Age", since_exposure: "since exposure",
  queue: "Queue", in_flight: "in flight",
  residual_title: "‖y − Φv‖/‖y‖ of the video", saturated: "Saturated", of_pixels: "of pixels", mask_shift: "Mask shift",
  single_masks: "RMS errors of single masks: {px} px, gain {gain}",
  frame_times: "B × {least}–{most}", frame_lengths: "frames {least} to {most} times as long as in the mean",
  mask_shift_title: "Estimated shift of the masks since the calibration", not_seen_yet: "not measured yet", corrected: "corrected", uncorrected: "uncorrected",
  short_of_time: "time-limited",
  last_minutes: "Last five minutes", last_minutes_label: "Latency and losses over the last five minutes", latency_line: "latency", solve_line: "solve", lost_bar: "lost",
  minutes_ago: "−{n} min", right_now: "now", by_stage: "Latency by stage", stage: "stage", no_snapshot_yet: "no snapshot yet",
  histograms: "Histograms", sensor: "Sensor", screen: "Screen", clipped: "clipped {share}", sensor_given: "max {max} of {top} DN", sensor_saturated: ", saturated {share}", not_sent: "not sent",
  bits: "{n} bit",
  // inspection
  inspect: "Region", whole_picture: "whole picture", region_is: "{width}×{height} at {x}, {y}", mean: "mean", deviation: "std", minimum: "min", maximum: "max",
  of_video: "video", of_counts: "sensor (DN)", focus: "Focus", focus_title: "Mean squared gradient over squared mean: turn the lens until it is highest",
  focus_best: "best {value}", focus_reset: "reset best", region_clear: "whole picture",
  probe: "x {x}, y {y}: {value}", probe_both: "x {x}, y {y}: {value} · {counts} DN",
  // tone
  tone: "Tone", reset: "reset", reset_title: "Values of the rig file (0)", exposure: "Exposure", black: "Black", gamma: "Gamma", white: "White", white_balance: "White balance",
  off: "Off", off_title: "No white balance", auto_white: "Auto", auto_white_title: "The mean of the scene is grey (W)", pick: "Pick", pick_title: "Click a white or grey point (P)",
  fixed: "Fixed", fixed_title: "Fixed gains of red, green and blue", gains: "Gains", gain_red: "Gain of red", gain_green: "Gain of green", gain_blue: "Gain of blue",
  demosaic: "Demosaic", bilinear: "bilinear", directional: "directional", colours: "Colours", grey: "grey",
  // ledger, recording, instrument, nodes
  ledger: "Ledger", open: "open", closed: "closed", does_not_close: "does not close", ended: "ended", acquired: "acquired", reconstructed: "reconstructed", raw_only: "raw only", not_kept: "not kept", keep_event: "Keep event", keep_title: "Record the seconds before and after now (K)", keeping: "The seconds before and after are being kept", kept_by: "kept by {who}", armed: "armed", event_now: "event {n}", hold_off: "hold-off", events_n: "{n} events",
  dropped_reason: "dropped: {reason}", dropped: "dropped", missed_by_camera: "missed by the camera", redelivered: "redelivered", duplicates: "duplicates discarded",
  recording: "Recording", file: "file", last_file: "last file", written: "written", written_value: "{bytes}, {snapshots}", rate_word: "rate", waiting_bytes: ", {bytes} waiting",
  disk_free: "disk free", why: "why", while_off: "while off", nothing_recorded: "nothing is being recorded", rec: "REC {bytes}",
  state_off: "off", state_recording: "recording", state_closing: "closing", state_closed: "closed", state_failed: "failed", state_stopped: "stopped",
  snapshots_one: "1 snapshot", snapshots_many: "{n} snapshots",
  instrument: "Instrument", for_everybody: "for all, recorded", series_actions: "Series", now_is: "{name}: {value}", on: "on",
  nodes: "Nodes", n_of_up: "{up} of {all} up", gone: "disconnected", none_yet: "none yet", up: "up", lost: "lost", device_of: "{denoiser} on {device}",
  held: "held", unsafe: "unacknowledged", missed: "missed", identical: "identical", trigger_missed: "triggers missed", trigger_early: "triggers early", in_hand: "in hand", failed: "failed",
  // alarms
  alarms: "Alarms", acknowledge: "Acknowledge", no_alarm: "none", alarm_since: "since {from}", alarm_over: "{from} to {to}", acknowledged_by: "acknowledged by {who}", n_open: "{n} to acknowledge",
 
  // verdicts
  s_connecting: "connecting", s_ended: "ended", s_no_connection: "no connection", s_full: "full", s_paused: "paused, {time} behind", s_behind: "{time} behind", s_live: "live",
  s_node_lost: "{state}, a node is lost", s_losing: "losing {share} %", s_stopped: "camera stopped", s_no_data: "no data", s_waiting: "waiting",
  CONNECTING: "CONNECTING", ENDED: "ENDED", NO_CONNECTION: "NO CONNECTION", FULL: "FULL", NO_DATA: "NO DATA", WAITING: "WAITING", LOOKING_BACK: "LOOKING BACK",
  waiting_for_sink: "waiting for the sink node", instrument_stopped: "the instrument has stopped; this is its last video", trying_again: "the sink node does not answer; trying again",
  full_why_one: "1 viewer is watching, the limit of this rig ([preview] max_viewers); trying again",
  full_why: "{n} viewers are watching, the limit of this rig ([preview] max_viewers); trying again",
  series_over_video: "the series is over; this is its last video", series_over: "the series is over", delivered_nothing: "the camera has delivered nothing for {time}",
  no_video_for: "no new video for {time}", no_node_yet: "no {nodes} node is connected yet", and_no: " and no ", for_first_video: "for the first video", no_video_yet: "no video has arrived yet",
  looking_back: "{time} ago",
  // messages
  saved_to: "Saved to {place}", recording_to: "Recording to {file}", recorded_to: "Recorded to {file}", no_answer: "The sink node does not answer.",
  stop_series_why: "The series ends for all viewers, and its recording is closed. The camera stays open until the next series is started.",
  stop_recording: "Stop the recording", stop_recording_why: "It stops for everybody. Snapshots from now on are not recorded until someone starts it again.",
  large_change: "Set {name} from {old} to {value}", large_change_why: "This is a change by more than a factor of four, for everybody.",
  who_title: "Your name?", who_why: "It stands beside your changes, on the page of every viewer and in the recording. This browser remembers it.",
  your_name: "Your name", without_name: "Without", continue: "Continue",
  changes: "Changes", no_changes: "none yet", change_by: "{what}, by {who}", tone_by: "by {who}",
  next_series_why: "The series ends for all viewers, its recording is closed, and the next one starts at once.", cancel: "Cancel", question: "{what}?",
  // files
  this_snapshot: "This snapshot", still_zip: "Still: pictures and data (zip)", last_video: "Video up to the picture on the screen", seconds: "last {n} s", mp4: "MP4",
  recordings: "Recordings", no_recordings: "no recording in this rig's folder", download: "Download", close: "Close",
  state_open: "being written", state_clean: "complete", state_continued: "continued", state_unfinished: "unfinished", state_unreadable: "unreadable", state_movie: "movie",
  ledger_line: "{acquired} = {reconstructed} reconstructed + {raw_only} raw only + {dropped} dropped", ledger_not_kept: " + {n} not kept", ledger_in_flight: " + {n} in flight", preparing: "preparing {name} …",
  // help
  analyses: "Figures of the snapshot",
  keyboard: "Keyboard", settings: "Settings", theme: "Theme", theme_dark: "dark", theme_light: "light", language_word: "Language",
  figures_at: "Figures as JSON at",
  encoding: "This browser is sent {codec}.",
  k_pause: "pause or play", k_before: "frame before", k_next: "next frame", k_first: "first frame", k_last: "last frame", k_older: "snapshot before", k_newer: "next snapshot",
  k_loop: "loop the newest snapshot", k_view: "both, video, coded snapshot", k_full: "full screen: the picture alone", k_panels: "show or hide the panels", k_zoom: "whole picture or 1:1", k_roi: "draw a region",
  k_cut: "space-time cut", k_zebra: "clipping zebra", k_record: "start or stop recording", k_save: "download this snapshot", k_files: "downloads", k_brighter: "brighter", k_darker: "darker",
  k_reset: "tone of the rig file", k_auto: "automatic white balance on or off", k_pick: "pick white", k_dark: "dark lab: red and dim", k_help: "this list", space: "space",
  // refining, wipe, playback
  more: "all figures", more_title: "All figures, the last minutes, latency by stage (M)", k_more: "all figures, or three",
  uncertainty: "Error", uncertainty_title: "Measured or filled in: estimated error of the paused frame, red from 2 to 10 % of full scale (U)", k_uncertainty: "estimated error", wipe: "Wipe", wipe_title: "Wipe between the video and the coded snapshot, or two methods (T)", k_wipe: "wipe to the coded snapshot or the other method",
  refine: "Refine", refine_title: "Solve this snapshot again with 40 iterations, beside the rig (E)", refine_with: "Method to refine with",
  k_refine: "refine the paused snapshot", same_method: "same method", refining: "refining #{seq} …",
  refined_late: "#{seq} is refined, but no longer on the screen: pause on it and refine again", REFINED: "REFINED", refined_why: "solved again with {iterations} iterations",
  n_iterations: "{n} iterations", RECORDING: "RECORDING", recorded_at: "{name}, {n} of {total}",
  s_recorded: "playback", replay_short: "Replay", replay_why: "It takes processor time of this host, at the lowest priority, and writes a new recording.", replay: "Replay with more iterations", replay_with: "Iterations of a replay",
  replay_stop: "Stop the replay", replaying: "being made", replaying_to: "Replaying to {file}",
  replaying_is: "{name} is being solved again", replay_of: "replay of {name}", unlock: "change",
  unlock_title: "Unlock these settings for a minute",
};

const de = {
  language: "Deutsch",
  simulated: "SIMULIERT", simulated_title: "Keine echte Kamera: diese Bilder sind berechnet",
  record: "Aufnehmen", stop: "Stopp", record_title: "Aufnahme starten oder beenden (R)",
  save: "Sichern", save_title: "Diese Aufnahme herunterladen: Bilder und Daten (S)",
  files: "Dateien", files_title: "Einzelbilder, Filme und Aufzeichnungen herunterladen (O)",
  dark_lab: "Dunkellabor", dark_lab_title: "Rot und dunkel, für das Dunkellabor (D)", help_title: "Tastatur und Einstellungen (?)",
  problems: "Störungen", no_series: "noch keine Serie",
  pictures: "Bilder", video: "Video", video_label: "Rekonstruiertes Video", coded: "Codierte Aufnahme",
  choose_white: "Etwas Weißes oder Graues anklicken", too_bright: "Dieser Punkt ist zu hell für den Weißabgleich: einen grauen wählen", too_dark: "Dieser Punkt ist zu dunkel für den Weißabgleich: etwas Graues oder Weißes wählen", leave: "Abbrechen",
  video_size: "{n} Bilder, {width}×{height}", shrunk: ", verkleinert auf {width}×{height}: für volle Auflösung anhalten und zoomen", every_pixel: ", volle Auflösung",
  coded_size: "eine Belichtung, {width}×{height}{bayer}", coded_of: ", von #{seq}", coded_not_sent: "nicht mit dem Video gesendet",
  coded_not_kept: "zu dieser Aufnahme nicht aufbewahrt",
  playback: "Wiedergabe", frame_before: "Bild zurück", frame_before_title: "Bild zurück (←)", pause: "Anhalten", play: "Abspielen",
  pause_title: "Anhalten oder abspielen (Leertaste)", next_frame: "Nächstes Bild", next_frame_title: "Nächstes Bild (→)", snapshot: "Aufnahme",
  frame_of_snapshot: "Bild der Aufnahme", frame_n: "Bild {n} von {of}",
  loop: "Schleife", loop_title: "Die neueste Aufnahme wiederholen, bis die nächste kommt (L)",
  film: "Die Bilder dieser Belichtung", cut: "Schnitt", cut_title: "Raum-Zeit-Schnitt entlang einer Linie, Verlauf des Bereichs (C)", cut_of: "Raum-Zeit-Schnitt", new_line: "Linie", draw_line: "Linie im Video ziehen",
  cut_is: "{n} Bilder zu {ms} ms", spectrum: "Spektrum", spectrum_title: "Der Verlauf nach Frequenz", spectrum_is: "am stärksten bei {hz} Hz, bis {most} Hz", csv: "CSV", csv_title: "Werte des Schnitts und des Verlaufs",
  profile: "Profil des neuesten Bilds entlang der Linie", trace: "Mittel des Bereichs, Bild für Bild",
  rate: "Tempo", rate_title: "Bilder je Sekunde; auto: wie gefilmt", rate_label: "Tempo der Wiedergabe", auto: "auto",
  view: "Ansicht", both: "Beide", both_title: "Beide Bilder (V)", video_title: "Nur Video (V)", coded_short: "Codiert", coded_title: "Nur codierte Aufnahme (V)",
  full: "Vollbild", full_title: "Vollbild (F)", full_refused: "Der Browser erlaubt hier kein Vollbild.",
  panels: "Felder", panels_title: "Felder zeigen oder verbergen (B)",
  fit: "Ganz", fit_title: "Das ganze Bild (Z)", one_to_one: "1:1", one_to_one_title: "Ein Pixel des Sensors auf einem des Bildschirms (Z)",
  roi: "Bereich", roi_title: "Einen Bereich zum Messen zeichnen (G)", zebra: "Zebra", zebra_title: "Streifen, wo der Bereich des Bildschirms endet (X)",
  timeline: "Zeitleiste: die letzten fünf Minuten", timeline_title: "Klicken oder ziehen, um zurückzusehen; rot: Aufnahmen gingen verloren. Aufbewahrt: {used} von {most}",
  to_live: "Zu live", to_live_title: "Zurück zum neuesten Video (Pos1 der Zeitleiste)",
  ago: "−{time}",
  now: "Jetzt", camera: "Kamera", per_second: "Aufnahmen/s", frames_per_second: "Bilder/s", latency: "Latenz",
  latency_title: "Von der Belichtung bis zur Senke, Median der letzten zehn Sekunden", last_10_s: "letzte 10 s", age: "Alter", since_exposure: "seit Belichtung",
  queue: "Schlange", in_flight: "unterwegs",
  residual_title: "‖y − Φv‖/‖y‖ des Videos", saturated: "Gesättigt", of_pixels: "der Pixel", mask_shift: "Maskenversatz",
  single_masks: "Fehler einzelner Masken: {px} px und {gain}, quadratisches Mittel",
  frame_times: "B × {least}–{most}", frame_lengths: "Bilder {least}- bis {most}-mal so lang wie im Mittel",
  mask_shift_title: "Wie weit sich die Masken seit der Kalibrierung verschoben haben", not_seen_yet: "noch nicht bestimmt", corrected: "korrigiert", uncorrected: "unkorrigiert",
  short_of_time: "unter Zeitdruck",
  last_minutes: "Letzte fünf Minuten", last_minutes_label: "Latenz und Verluste der letzten fünf Minuten", latency_line: "Latenz", solve_line: "Rechnung", lost_bar: "verloren",
  minutes_ago: "−{n} min", right_now: "jetzt", by_stage: "Latenz je Stufe", stage: "Stufe", no_snapshot_yet: "noch keine Aufnahme",
  histograms: "Histogramme", sensor: "Sensor", screen: "Bildschirm", clipped: "abgeschnitten {share}", sensor_given: "max. {max} von {top} DN", sensor_saturated: ", gesättigt {share}", not_sent: "nicht gesendet",
  bits: "{n} Bit",
  inspect: "Bereich", whole_picture: "ganzes Bild", region_is: "{width}×{height} bei {x}, {y}", mean: "Mittel", deviation: "Std.", minimum: "Min.", maximum: "Max.",
  of_video: "Video", of_counts: "Sensor (DN)", focus: "Schärfe", focus_title: "Mittleres Gradientenquadrat durch Quadrat des Mittels: am Objektiv drehen, bis es am höchsten ist",
  focus_best: "Bestwert {value}", focus_reset: "Bestwert zurücksetzen", region_clear: "ganzes Bild",
  probe: "x {x}, y {y}: {value}", probe_both: "x {x}, y {y}: {value} · {counts} DN",
  tone: "Tonwerte", reset: "zurück", reset_title: "Werte der Rig-Datei (0)", exposure: "Belichtung", black: "Schwarz", gamma: "Gamma", white: "Weiß", white_balance: "Weißabgleich",
  off: "Aus", off_title: "Ohne Weißabgleich", auto_white: "Auto", auto_white_title: "Das Mittel der Szene ist grau (W)", pick: "Wählen", pick_title: "Einen weißen oder grauen Punkt anklicken (P)",
  fixed: "Fest", fixed_title: "Diese Verstärkungen von Rot, Grün und Blau", gains: "Verstärkungen", gain_red: "Verstärkung Rot", gain_green: "Verstärkung Grün", gain_blue: "Verstärkung Blau",
  demosaic: "Demosaicing", bilinear: "bilinear", directional: "gerichtet", colours: "Farben", grey: "grau",
  ledger: "Bilanz", open: "offen", closed: "geschlossen", does_not_close: "geht nicht auf", ended: "beendet", acquired: "aufgenommen", reconstructed: "rekonstruiert", raw_only: "nur roh", not_kept: "nicht behalten", keep_event: "Ereignis behalten", keep_title: "Die Sekunden vor und nach jetzt aufzeichnen (K)", keeping: "Die Sekunden davor und danach werden behalten", kept_by: "behalten von {who}", armed: "bereit", event_now: "Ereignis {n}", hold_off: "Sperrzeit", events_n: "{n} Ereignisse",
  dropped_reason: "verworfen: {reason}", dropped: "verworfen", missed_by_camera: "von der Kamera verpasst", redelivered: "neu zugestellt", duplicates: "Doppelte abgewiesen",
  recording: "Aufzeichnung", file: "Datei", last_file: "letzte Datei", written: "geschrieben", written_value: "{bytes}, {snapshots}", rate_word: "Rate", waiting_bytes: ", {bytes} wartend",
  disk_free: "Platte frei", why: "Grund", while_off: "während aus", nothing_recorded: "es wird nichts aufgezeichnet", rec: "REC {bytes}",
  state_off: "aus", state_recording: "läuft", state_closing: "schließt", state_closed: "geschlossen", state_failed: "fehlgeschlagen", state_stopped: "abgebrochen",
  snapshots_one: "1 Aufnahme", snapshots_many: "{n} Aufnahmen",
  instrument: "Instrument", for_everybody: "für alle, protokolliert", series_actions: "Serie", now_is: "{name}: {value}", on: "an",
  nodes: "Knoten", n_of_up: "{up} von {all} da", gone: "getrennt", none_yet: "noch keine", up: "da", lost: "verloren", device_of: "{denoiser} auf {device}",
  held: "gehalten", unsafe: "unbestätigt", missed: "verpasst", identical: "identisch", trigger_missed: "Trigger verpasst", trigger_early: "Trigger zu früh", in_hand: "in Arbeit", failed: "fehlgeschlagen",
  alarms: "Alarme", acknowledge: "Quittieren", no_alarm: "keine", alarm_since: "seit {from}", alarm_over: "{from} bis {to}", acknowledged_by: "quittiert durch {who}", n_open: "{n} zu quittieren",
 
  s_connecting: "verbindet", s_ended: "beendet", s_no_connection: "keine Verbindung", s_full: "kein Platz", s_paused: "angehalten, {time} zurück", s_behind: "{time} zurück", s_live: "live",
  s_node_lost: "{state}, ein Knoten fehlt", s_losing: "verliert {share} %", s_stopped: "Kamera steht", s_no_data: "keine Daten", s_waiting: "wartet",
  CONNECTING: "VERBINDET", ENDED: "BEENDET", NO_CONNECTION: "KEINE VERBINDUNG", FULL: "BESETZT", NO_DATA: "KEINE DATEN", WAITING: "WARTET", LOOKING_BACK: "RÜCKBLICK",
  waiting_for_sink: "wartet auf den Senkenknoten", instrument_stopped: "das Instrument wurde beendet; dies ist sein letztes Video", trying_again: "der Senkenknoten antwortet nicht; neuer Versuch",
  full_why_one: "Ein Zuschauer sieht zu, mehr lässt dieses Rig nicht zu ([preview] max_viewers); neuer Versuch",
  full_why: "{n} Zuschauer sehen zu, mehr lässt dieses Rig nicht zu ([preview] max_viewers); neuer Versuch",
  series_over_video: "die Serie ist zu Ende; dies ist ihr letztes Video", series_over: "die Serie ist zu Ende", delivered_nothing: "die Kamera liefert seit {time} nichts",
  no_video_for: "seit {time} kein neues Video", no_node_yet: "noch kein Knoten {nodes}", and_no: " und kein ", for_first_video: "auf das erste Video", no_video_yet: "noch kein Video",
  looking_back: "vor {time}",
  saved_to: "Gesichert in {place}", recording_to: "Aufzeichnung in {file}", recorded_to: "Aufgezeichnet in {file}", no_answer: "Der Senkenknoten antwortet nicht.",
  stop_series_why: "Die Serie endet für alle, und ihre Aufzeichnung wird geschlossen. Die Kamera bleibt offen, bis die nächste Serie gestartet wird.",
  stop_recording: "Aufzeichnung beenden", stop_recording_why: "Die Aufzeichnung endet für alle. Ab jetzt wird nichts aufgezeichnet.",
  large_change: "{name} von {old} auf {value} setzen", large_change_why: "Das ändert den Wert für alle um mehr als das Vierfache.",
  who_title: "Ihr Name?", who_why: "Er steht bei Ihren Änderungen, auf der Seite jedes Zuschauers und in der Aufzeichnung. Dieser Browser merkt ihn sich.",
  your_name: "Ihr Name", without_name: "Ohne", continue: "Weiter",
  changes: "Änderungen", no_changes: "noch keine", change_by: "{what}, durch {who}", tone_by: "durch {who}",
  next_series_why: "Die Serie endet für alle, ihre Aufzeichnung wird geschlossen, und die nächste beginnt sofort.", cancel: "Abbrechen", question: "{what}?",
  this_snapshot: "Diese Aufnahme", still_zip: "Einzelbild: Bilder und Daten (zip)", last_video: "Video bis zum Bild auf dem Schirm", seconds: "letzte {n} s", mp4: "MP4",
  recordings: "Aufzeichnungen", no_recordings: "keine Aufzeichnung im Ordner dieses Rigs", download: "Herunterladen", close: "Schließen",
  state_open: "wird geschrieben", state_clean: "vollständig", state_continued: "fortgesetzt", state_unfinished: "unvollendet", state_unreadable: "unlesbar", state_movie: "Film",
  ledger_line: "{acquired} = {reconstructed} rekonstruiert + {raw_only} nur roh + {dropped} verworfen", ledger_not_kept: " + {n} nicht behalten", ledger_in_flight: " + {n} unterwegs", preparing: "{name} wird vorbereitet …",
  analyses: "Zahlen der Aufnahme",
  keyboard: "Tastatur", settings: "Einstellungen", theme: "Farben", theme_dark: "dunkel", theme_light: "hell", language_word: "Sprache",
  figures_at: "Zahlen als JSON unter",
  encoding: "Dieser Browser erhält {codec}.",
  k_pause: "anhalten oder abspielen", k_before: "Bild zurück", k_next: "nächstes Bild", k_first: "erstes Bild", k_last: "letztes Bild", k_older: "Aufnahme davor", k_newer: "nächste Aufnahme",
  k_loop: "neueste Aufnahme wiederholen", k_view: "beide, Video, codierte Aufnahme", k_full: "Vollbild: das Bild allein", k_panels: "Felder zeigen oder verbergen", k_zoom: "ganzes Bild oder 1:1", k_roi: "Bereich zeichnen",
  k_cut: "Raum-Zeit-Schnitt", k_zebra: "Zebra", k_record: "Aufnahme starten oder beenden", k_save: "diese Aufnahme herunterladen", k_files: "Herunterladen", k_brighter: "heller", k_darker: "dunkler",
  k_reset: "Tonwerte wie im Rig", k_auto: "automatischer Weißabgleich an oder aus", k_pick: "Weiß wählen", k_dark: "Dunkellabor: rot und dunkel", k_help: "diese Liste", space: "Leertaste",
  // refining, wipe, playback
  more: "alle Zahlen", more_title: "Alle Zahlen, die letzten Minuten, Latenz je Stufe (M)", k_more: "alle Zahlen oder drei",
  uncertainty: "Fehler", uncertainty_title: "Gemessen oder ergänzt: geschätzter Fehler des angehaltenen Bilds, rot von 2 bis 10 % der Skala (U)", k_uncertainty: "geschätzter Fehler", wipe: "Wischen", wipe_title: "Zwischen Video und codierter Aufnahme oder zwei Verfahren wischen (T)", k_wipe: "zur codierten Aufnahme oder zum anderen Verfahren wischen",
  refine: "Verfeinern", refine_title: "Diese Aufnahme neben dem Betrieb mit 40 Iterationen neu rechnen (E)", refine_with: "Verfahren zum Verfeinern",
  k_refine: "angehaltene Aufnahme verfeinern", same_method: "gleiches Verfahren", refining: "verfeinert #{seq} …",
  refined_late: "#{seq} ist verfeinert, aber nicht mehr auf dem Schirm: dort anhalten und neu verfeinern", REFINED: "VERFEINERT", refined_why: "mit {iterations} Iterationen neu gerechnet",
  n_iterations: "{n} Iterationen", RECORDING: "AUFZEICHNUNG", recorded_at: "{name}, {n} von {total}",
  s_recorded: "Wiedergabe", replay_short: "Neu rechnen", replay_why: "Das braucht Rechenzeit dieses Rechners, mit niedrigster Priorität, und schreibt eine neue Aufzeichnung.", replay: "Mit mehr Iterationen neu rechnen", replay_with: "Iterationen beim Neurechnen",
  replay_stop: "Neurechnen abbrechen", replaying: "entsteht", replaying_to: "Neu gerechnet in {file}",
  replaying_is: "{name} wird neu gerechnet", replay_of: "neu gerechnet aus {name}", unlock: "ändern",
  unlock_title: "Diese Einstellungen für eine Minute freigeben",
};

export const WORDS = { en, de };

const preferred = localStorage.getItem("language") ?? navigator.language.slice(0, 2);
export const language = preferred in WORDS ? preferred : "en";

export function t(key, values = {}) {
  return (WORDS[language][key] ?? en[key] ?? key).replace(/\{(\w+)\}/g, (_, name) => values[name] ?? "");
}

// A state in the language of the page; without a translation, its name.
export const named = (prefix, name) => (prefix + name in en ? t(prefix + name) : String(name).replaceAll("_", " "));

export function setLanguage(wanted) {
  localStorage.setItem("language", wanted);
  location.reload();
}

// data-t is an element's text, data-title its tooltip, data-label its name for screen readers.
export function applyWords() {
  document.documentElement.lang = language;
  for (const node of document.querySelectorAll("[data-t]")) node.textContent = t(node.dataset.t);
  for (const node of document.querySelectorAll("[data-title]")) node.title = t(node.dataset.title);
  for (const node of document.querySelectorAll("[data-label]")) node.setAttribute("aria-label", t(node.dataset.label));
}
