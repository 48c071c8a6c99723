; Tessera's installer for one user. makensis -DVERSION=... -DPROGRAM=folder -DOUT=file tessera.nsi
; Silent: /S, /D=folder (last), /PATH=0 to leave PATH alone. Uninstall: /S keeps models and chats, /MODELS removes them.
; Exit codes: 0 done, 1 ended by the user, 2 stopped: Tessera runs, or a file could not be written.
Target amd64-unicode
Unicode true
!include "MUI2.nsh"
!include "FileFunc.nsh"
!include "WinMessages.nsh"
!insertmacro GetParameters
!insertmacro GetOptions

Name "Tessera"
OutFile "${OUT}"
InstallDir "$LOCALAPPDATA\Programs\Tessera"
InstallDirRegKey HKCU "Software\Tessera" "Folder"
RequestExecutionLevel user
SetCompressor /SOLID lzma
BrandingText "Tessera ${VERSION}"
!define UNINSTALL "Software\Microsoft\Windows\CurrentVersion\Uninstall\Tessera"
; NSIS holds 1,023 characters in a string: a longer PATH is read as nothing, and must never be written over.
!define MOST_PATH 900
!define ASSOCIATIONS_CHANGED 0x08000000

!insertmacro MUI_PAGE_WELCOME
!insertmacro MUI_PAGE_DIRECTORY
!insertmacro MUI_PAGE_COMPONENTS
!insertmacro MUI_PAGE_INSTFILES
!define MUI_FINISHPAGE_RUN "$INSTDIR\tessera-window.exe"
!insertmacro MUI_PAGE_FINISH
!insertmacro MUI_UNPAGE_CONFIRM
!insertmacro MUI_UNPAGE_INSTFILES
!insertmacro MUI_LANGUAGE "English"
!insertmacro MUI_LANGUAGE "German"

!macro Shared un
; Windows lets nobody write to a program that runs: nothing is changed while one of ours does.
Function ${un}StopWhileRunning
  StrCpy $1 "tessera.exe"
  Call ${un}StopIfRunning
  StrCpy $1 "tessera-window.exe"
  Call ${un}StopIfRunning
FunctionEnd

Function ${un}StopIfRunning
  IfFileExists "$INSTDIR\$1" 0 free
  again:
  ClearErrors
  FileOpen $0 "$INSTDIR\$1" a
  IfErrors 0 close
  MessageBox MB_RETRYCANCEL|MB_ICONEXCLAMATION "Tessera is running. Close its window and stop its server, then try again." /SD IDCANCEL IDRETRY again
  SetErrorLevel 2
  Quit
  close:
  FileClose $0
  free:
FunctionEnd

; -> $0: this user's PATH, $1: "0" where it is too long to be read or to be longer
Function ${un}ReadPath
  StrCpy $1 "1"
  ReadRegStr $0 HKCU "Environment" "Path"
  StrLen $2 "$0"
  IntCmp $2 ${MOST_PATH} 0 0 long
  StrCmp $0 "" 0 end
  StrCpy $2 0
  value:
  EnumRegValue $3 HKCU "Environment" $2
  StrCmp $3 "" end
  StrCmp $3 "Path" long
  IntOp $2 $2 + 1
  Goto value
  long:
  StrCpy $1 "0"
  end:
FunctionEnd

; $0: a list as PATH has it -> $1: the same without our folder, $2: "1" where our folder was in it
Function ${un}WithoutOurs
  StrCpy $1 ""
  StrCpy $2 "0"
  StrCpy $3 ""
  StrCpy $4 0
  next:
  StrCpy $5 $0 1 $4
  IntOp $4 $4 + 1
  StrCmp $5 "" part
  StrCmp $5 ";" part
  StrCpy $3 "$3$5"
  Goto next
  part:
  StrCmp $3 "$INSTDIR" ours
  StrCmp $3 "" after
  StrCmp $1 "" 0 +3
  StrCpy $1 "$3"
  Goto after
  StrCpy $1 "$1;$3"
  Goto after
  ours:
  StrCpy $2 "1"
  after:
  StrCpy $3 ""
  StrCmp $5 "" 0 next
FunctionEnd
!macroend
!insertmacro Shared ""
!insertmacro Shared "un."

!macro TellShell
  System::Call 'shell32::SHChangeNotify(i ${ASSOCIATIONS_CHANGED}, i 0, p 0, p 0)'
!macroend

Section "Tessera" SecMain
  SectionIn RO
  Call StopWhileRunning
  ; An earlier version's folder goes first: a module that no longer exists must not stay behind.
  RMDir /r "$INSTDIR\_internal"
  SetOutPath "$INSTDIR"
  ClearErrors
  File /r "${PROGRAM}\*.*"
  IfErrors 0 written
  SetErrorLevel 2
  Abort "Not all files could be written to $INSTDIR."
  written:
  WriteRegStr HKCU "Software\Tessera" "Folder" "$INSTDIR"
  CreateDirectory "$SMPROGRAMS\Tessera"
  CreateShortcut "$SMPROGRAMS\Tessera\Tessera.lnk" "$INSTDIR\tessera-window.exe"
  CreateShortcut "$SMPROGRAMS\Tessera\Uninstall Tessera.lnk" "$INSTDIR\uninstall.exe"
  WriteUninstaller "$INSTDIR\uninstall.exe"
  WriteRegStr HKCU "${UNINSTALL}" "DisplayName" "Tessera"
  WriteRegStr HKCU "${UNINSTALL}" "DisplayVersion" "${VERSION}"
  WriteRegStr HKCU "${UNINSTALL}" "Publisher" "The Tessera authors"
  WriteRegStr HKCU "${UNINSTALL}" "DisplayIcon" "$INSTDIR\tessera-window.exe"
  WriteRegStr HKCU "${UNINSTALL}" "UninstallString" '"$INSTDIR\uninstall.exe"'
  WriteRegStr HKCU "${UNINSTALL}" "QuietUninstallString" '"$INSTDIR\uninstall.exe" /S'
  WriteRegDWORD HKCU "${UNINSTALL}" "NoModify" 1
  WriteRegDWORD HKCU "${UNINSTALL}" "NoRepair" 1
  ${GetSize} "$INSTDIR" "/S=0K" $0 $1 $2
  IntFmt $0 "0x%08X" $0
  WriteRegDWORD HKCU "${UNINSTALL}" "EstimatedSize" "$0"
SectionEnd

Section "Open .gguf files with Tessera" SecFiles
  ; Whoever opened these files before gets them back at the end.
  ReadRegStr $0 HKCU "Software\Classes\.gguf" ""
  StrCmp $0 "Tessera.Model" +2
  WriteRegStr HKCU "Software\Tessera" "FilesBefore" "$0"
  WriteRegStr HKCU "Software\Classes\.gguf" "" "Tessera.Model"
  WriteRegStr HKCU "Software\Classes\Tessera.Model" "" "AI model"
  WriteRegStr HKCU "Software\Classes\Tessera.Model\DefaultIcon" "" "$INSTDIR\tessera-window.exe,0"
  WriteRegStr HKCU "Software\Classes\Tessera.Model\shell\open\command" "" '"$INSTDIR\tessera-window.exe" "%1"'
  !insertmacro TellShell
SectionEnd

Section "The tessera command in terminals (PATH)" SecPath
  ${GetParameters} $R0
  ClearErrors
  ${GetOptions} $R0 "/PATH=" $R1
  StrCmp $R1 "0" done
  Call ReadPath
  StrCmp $1 "0" long
  Call WithoutOurs
  StrCmp $2 "1" done
  StrCmp $1 "" 0 +3
  WriteRegExpandStr HKCU "Environment" "Path" "$INSTDIR"
  Goto tell
  WriteRegExpandStr HKCU "Environment" "Path" "$0;$INSTDIR"
tell:
  WriteRegStr HKCU "Software\Tessera" "Path" "1"
  SendMessage ${HWND_BROADCAST} ${WM_SETTINGCHANGE} 0 "STR:Environment" /TIMEOUT=2000
  Goto done
long:
  DetailPrint "PATH is too long to be changed safely: add $INSTDIR to it yourself."
done:
SectionEnd

Section "Uninstall"
  Call un.StopWhileRunning
  ${GetParameters} $R0
  nsExec::Exec '"$INSTDIR\tessera.exe" service remove'
  Pop $0
  RMDir /r "$INSTDIR\_internal"
  Delete "$INSTDIR\tessera.exe"
  Delete "$INSTDIR\tessera-window.exe"
  Delete "$INSTDIR\uninstall.exe"
  RMDir "$INSTDIR"
  Delete "$SMPROGRAMS\Tessera\Tessera.lnk"
  Delete "$SMPROGRAMS\Tessera\Uninstall Tessera.lnk"
  RMDir "$SMPROGRAMS\Tessera"
  ReadRegStr $0 HKCU "Software\Classes\.gguf" ""
  StrCmp $0 "Tessera.Model" 0 foreign
  ReadRegStr $0 HKCU "Software\Tessera" "FilesBefore"
  StrCmp $0 "" 0 +3
  DeleteRegKey HKCU "Software\Classes\.gguf"
  Goto foreign
  WriteRegStr HKCU "Software\Classes\.gguf" "" "$0"
foreign:
  DeleteRegKey HKCU "Software\Classes\Tessera.Model"
  !insertmacro TellShell
  DeleteRegKey HKCU "${UNINSTALL}"
  ; PATH: our folder leaves it, everything else stays as it is.
  ReadRegStr $0 HKCU "Software\Tessera" "Path"
  StrCmp $0 "1" 0 nopath
  Call un.ReadPath
  StrCmp $1 "0" nopath
  Call un.WithoutOurs
  StrCmp $2 "1" 0 nopath
  StrCmp $1 "" 0 +3
  DeleteRegValue HKCU "Environment" "Path"
  Goto tell
  WriteRegExpandStr HKCU "Environment" "Path" "$1"
tell:
  SendMessage ${HWND_BROADCAST} ${WM_SETTINGCHANGE} 0 "STR:Environment" /TIMEOUT=2000
nopath:
  DeleteRegKey HKCU "Software\Tessera"
  ClearErrors
  ${GetOptions} $R0 "/MODELS" $R1
  IfErrors ask
  Goto models
ask:
  MessageBox MB_YESNO|MB_DEFBUTTON2 "Also delete your models, chats and settings?" /SD IDNO IDYES models
  Goto end
models:
  RMDir /r "$LOCALAPPDATA\tessera"
end:
SectionEnd
