"""Every control of the window is pressed in a walk, or is listed here with the reason why not."""

from collections import Counter

import pytest

from tests.gui.controls import controls, is_pressed, presses

# Names of widgets that are read, not pressed: texts, tables, progress, images, and frames around controls.
READ = {
    ("about.py", "Licence"),
    ("bench/page.py", "Progress of the measurement"),
    ("bench/page.py", "Earlier measurements"),
    ("chat/message_widget.py", "Message text"),
    ("chat/page.py", "Conversation"),
    ("chat/chat_transcript.py", "Result of the tool"),
    ("chat/voice.py", "Level of the microphone"),
    ("chat/voice.py", "The microphone is on. What you say becomes text in your message."),
    ("chat/welcome.py", "Welcome"),
    ("navigation.py", "Navigation"),
    ("navigation.py", "Pages"),
    ("code/page.py", "Code"),
    ("code/terminal_panel.py", "Output"),
    ("code/transcript.py", "Questions and answers"),
    ("code/transcript.py", "Your question"),
    ("connect/page.py", "The change"),
    ("devices/page.py", "Use of {name}"),
    ("library/details.py", "Chat template"),
    ("markdown/code_actions.py", "Code"),
    ("markdown/code_actions.py", "Picture"),
    ("library/hub_tab.py", "needs an account"),
    ("library/hub_tab.py", "Best for this computer"),
    ("library/hub_tab.py", "Fits"),
    ("library/hub_tab.py", "Does not fit"),
    ("job_card.py", "Progress"),
    ("documents/page.py", "Progress"),
    ("library/model_card.py", "Newer version on the hub"),
    ("library/recommended.py", "Recommended"),
    ("server/remote_server_card.py", "QR code of the link"),
    ("server/page.py", "Log of the server"),
    ("connect/page.py", "Text to paste for documents"),
    ("server/page.py", "Text to paste"),
    ("widgets/popups.py", "Effect of the selected entry"),
    ("widgets/tensor_mosaic.py", "{n} tensors, {bits} bits on average"),
}
# Other texts of a control that is pressed under the first ones.
ALSO_CALLED = {
    ("about.py", "Parts of the program"): "its entries are pressed by their names",
    ("chat/sidebar.py", "Chats"): "its rows are pressed by their titles",
    ("chat/sidebar.py", "Messages found"): "its rows are read in test_prompts",
    ("chat/sidebar.py", "Search all chats"): "Search chats",
    ("code/files_panel.py", "Files of the project"): "its rows are pressed by their names",
    ("code/page.py", "Terminal"): "it comes to the front by itself when a command runs",
    ("code/history_panel.py", "Sessions"): "its rows are pressed by their titles",
    ("code/page.py", "Ask about the project, or name a @file"): "Question",
    ("devices/page.py", "Let Tessera choose"): "Let Tessera choose: MODEL",
    ("devices/page.py", "Pin"): "Pin: MODEL, DEVICE",
    ("devices/page.py", "Eject"): "Eject: MODEL",
    ("devices/page.py", "Source of each setting"): "Source of each setting: MODEL",
    ("devices/page.py", "Pin to this device"): "Pin to this device: MODEL",
    ("connect/page.py", "Copy"): "Copy the text for documents",
    ("documents/page.py", "Download"): "Download a model for search by meaning",
    ("documents/page.py", "Ask in a chat"): "Ask about NAME in a chat",
    ("documents/page.py", "Read again"): "Read NAME again",
    ("chat/tools_panel.py", "Test again"): "Test NAME",
    ("chat/tools_panel.py", "Sign in…"): "Sign in to NAME",
    ("chat/tools_panel.py", "Sign out"): "Sign out of NAME",
    ("server/upstreams_card.py", "Remove the rule"): "Remove the rule for MODEL",
    ("server/upstreams_card.py", "Use its models"): "Use NAME",
}
CANNOT = {
    ("code/page.py", "Show all changes"): "the walks' models make no tool calls; see gui/code/test_agent",
    ("code/page.py", "Agent steps"): "the walks' models make no tool calls; pressed in gui/code/test_agent",
    ("chat/voice.py", "Start dictation"): "offered after a download of 76 MiB; pressed in test_voice",
    ("devices/page.py", "Stop measuring"): "this machine has one place for models; pressed in test_pages",
    ("chat/option_fields.py", "Reasoning budget"): "the walks' models do not reason",
    ("chat/page.py", "Show in folder"): "opens a program of the desktop, which a bare X server has not",
    ("library/hub_tab.py", "Look there"): "the walks' hub has no quantized file; see test_library",
    ("library/load_dialog.py", "Use an 8-bit cache"): "needs a computer with little memory; see test_library",
    ("library/model_card.py", "Show in folder"): "opens a program of the desktop, which a bare X server has not",
    (
        "server/remote_server_card.py",
        "Show a QR code of this server",
    ): "closed while only loopback is served, as in tests",
    ("pages.py", "Connect an editor"): "offered once, together with Add documents, which test_first_hour presses",
    ("pages.py", "Find more models"): "offered once, together with Add documents, which test_first_hour presses",
    ("settings_page.py", "Restart now"): "the window that starts again has no eye of a walk; see test_manners",
    ("settings_page.py", "Port"): "closed by the environment variable that keeps walks apart",
    ("main_window.py", "Quit"): "a bare X server has no tray",
    ("main_window.py", "Show Tessera"): "a bare X server has no tray",
    ("application.py", "Open the release page"): "opens a browser",
    (
        "quantize/converter_prompt.py",
        "Convert it",
    ): "needs the converter's environment of 1 GB (optin/llama_cpp_door.py)",
    (
        "quantize/converter_prompt.py",
        "Download and convert",
    ): "fetches 320 MB; pressed before recorded answers in test_fit_page",
}
# Texts that occur in several places of the window: the walk that presses each of them.
WHERE = {
    ("about.py", "Close"): "test_settings",
    ("chat/tools_panel.py", "Add"): "test_tools",
    ("chat/tools_panel.py", "Cancel"): "test_small_controls",
    ("chat/composer.py", "Remove {name}"): "test_small_controls",
    ("chat/controller.py", "New chat"): "test_long_chats",
    ("chat/memory.py", "Done"): "test_tools",
    ("chat/memory.py", "Export…"): "test_tools",
    ("chat/memory.py", "Undo"): "test_tools",
    ("chat/message_actions.py", "Delete"): "test_chat_keeping",
    ("chat/message_editor.py", "Cancel"): "test_small_controls",
    ("chat/message_widget.py", "Copy"): "test_controls",
    ("chat/message_widget.py", "More"): "test_chat_keeping",
    ("chat/model_bar.py", "System prompt and sampling"): "test_chat_keeping",
    ("chat/options.py", "Documents"): "walker",
    ("chat/options.py", "System prompt"): "test_prompts",
    ("chat/page.py", "Undo"): "test_chat_keeping",
    ("chat/project_dialog.py", "Cancel"): "test_small_controls",
    ("chat/project_dialog.py", "Save"): "test_chat_keeping",
    ("chat/sidebar.py", "Delete"): "test_mends",
    ("chat/sidebar.py", "Documents"): "walker",
    ("chat/sidebar.py", "Export…"): "test_mends",
    ("chat/sidebar.py", "Import chats…"): "test_chat_keeping",
    ("chat/sidebar.py", "More"): "test_chat_keeping",
    ("chat/sidebar.py", "Pin"): "test_chat_keeping",
    ("chat/welcome.py", "Download"): "test_small_controls",
    ("code/page.py", "Edits"): "test_tools",
    ("code/page.py", "Model"): "test_tools",
    ("code/review_panel.py", "Apply"): "test_tools",
    ("code/review_panel.py", "Edits"): "test_tools",
    ("code/review_panel.py", "Undo"): "test_tools",
    ("main_window.py", "Import chats…"): "test_prompts",
    ("main_window.py", "New chat"): "test_prompts",
    ("main_window.py", "System prompt and sampling"): "test_prompts",
    ("connect/page.py", "Apply"): "test_connect",
    ("connect/page.py", "Cancel"): "test_connect",
    ("connect/page.py", "Model"): "test_small_controls",
    ("connect/page.py", "Remove {name}"): "test_connect",
    ("devices/page.py", "Copy"): "test_devices",
    ("devices/power_card.py", "Apply"): "test_models",
    ("documents/page.py", "Remove {name}"): "test_controls",
    ("quantize/page.py", "Make it fit"): "test_jobs",
    ("quantize/page.py", "Model"): "test_small_controls",
    ("quantize/page.py", "Try again"): "test_mends",
    ("library/details.py", "Close"): "test_controls",
    ("library/hub_tab.py", "Download"): "test_jobs",
    ("library/hub_tab.py", "How thorough"): "test_jobs",
    ("library/hub_tab.py", "Make it fit"): "test_jobs",
    ("quantize/page.py", "How thorough"): "test_small_controls",
    ("library/hub_tab.py", "Try again"): "test_job_ends",
    ("job_card.py", "Cancel"): "test_jobs",
    ("library/linked_folders.py", "Done"): "test_models",
    ("library/load_dialog.py", "KV cache type"): "test_models",
    ("settings_page.py", "KV cache type"): "test_settings",
    ("quantize/page.py", "KV cache type"): "test_small_controls",
    ("library/load_dialog.py", "Save"): "test_models",
    ("library/model_card.py", "Make it fit"): "test_jobs",
    ("library/model_card.py", "Remove"): "test_job_ends",
    ("library/page.py", "Remove"): "test_controls",
    ("library/page.py", "Undo"): "test_controls",
    ("main_window.py", "Close"): "test_leaving",
    ("server/page.py", "Copy"): "test_connect",
    ("server/rows_card.py", "Add"): "test_connect",
    ("server/rows_card.py", "Remove {name}"): "test_connect",
    ("settings_page.py", "System prompt"): "test_settings",
    ("shortcuts.py", "Close"): "test_small_controls",
    ("application.py", "Try again"): "test_leaving",
    ("markdown/code_actions.py", "Close"): "test_chat_keeping",
    ("widgets/basics.py", "Close"): "test_mends",
}


def unpressed():
    """Controls that no walk presses."""
    everywhere = set().union(*presses().values())
    return {control for control in controls() if not is_pressed(control[1], everywhere)}


def test_every_control_is_pressed_in_a_walk_or_stands_here_with_its_reason():
    known = READ | ALSO_CALLED.keys() | CANNOT.keys()
    assert sorted(unpressed() - known) == [], "no walk presses these"
    said = Counter(words for _, words in controls())
    gone = {each for each in known - unpressed() if each not in controls() or said[each[1]] == 1}
    assert sorted(gone) == [], "these are pressed now, or are gone: take them off the list"


def test_words_that_are_said_in_several_places_are_pressed_in_each():
    found = controls()
    said = Counter(words for _, words in found)
    shared = {each for each in found if said[each[1]] > 1} - READ - ALSO_CALLED.keys() - CANNOT.keys()
    assert sorted(shared - WHERE.keys()) == []
    assert sorted(WHERE.keys() - shared) == []
    pressed = presses()
    assert [each for each, walk in WHERE.items() if not is_pressed(each[1], pressed[walk])] == []


@pytest.mark.parametrize(
    ("words", "pressed", "so"),
    [
        ("Add", {"Add"}, True),
        ("Add", {"Add a folder…"}, False),
        ("Revoke {name}", {"Revoke editor"}, True),
        ("Revoke {name}", {"Revoke {}"}, True),
        ("Revoke {name}", {"Revoke"}, False),
        ("Skip %1", {"Skip lamp.py"}, True),
    ],
)
def test_what_counts_as_pressed(words, pressed, so):
    assert is_pressed(words, pressed) is so
